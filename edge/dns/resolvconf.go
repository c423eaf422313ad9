package dns

import (
	"bufio"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// ResolvConf are the resolvers in a file in the format of resolv.conf. They follow changes of the
// file. All methods may be called from many goroutines.
type ResolvConf struct {
	path string

	mu      sync.Mutex // guards what follows
	all     []netip.AddrPort
	written time.Time
	checked time.Time
}

// checkInterval is the shortest time between two checks of the file.
const checkInterval = time.Second

// NewResolvConf returns the resolvers of the file at path, which may be missing.
func NewResolvConf(path string) *ResolvConf { return &ResolvConf{path: path} }

// List returns the resolvers.
func (r *ResolvConf) List() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.checked) < checkInterval {
		return r.all
	}
	r.checked = now
	// While the file is missing, cannot be read or is being written, the resolvers stay.
	if info, err := os.Stat(r.path); err == nil && !info.ModTime().Equal(r.written) {
		var all []netip.AddrPort
		for _, addr := range ReadNameservers(r.path) {
			const port = 53
			all = append(all, netip.AddrPortFrom(addr, port))
		}
		if len(all) > 0 {
			r.written, r.all = info.ModTime(), all
		}
	}
	return r.all
}

// ReadNameservers returns the resolvers in a file in the format of resolv.conf.
func ReadNameservers(path string) []netip.Addr {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var list []netip.Addr
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, addr)
		}
	}
	return list
}
