package link

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hangar-platform/hangar"
)

// keepaliveSeconds is how often a called peer hears of this one, apart from other traffic.
const keepaliveSeconds = 25

// Reach makes a peer, to which nothing leads yet, or says where it is now. It is not called before Call,
// or before something is sent to it.
func (l *Link) Reach(key hangar.PeerKey, endpoint netip.AddrPort) error {
	raw := key.Bytes()
	config := fmt.Sprintf("public_key=%s\nendpoint=%s\npersistent_keepalive_interval=0\n", hex.EncodeToString(raw[:]), endpoint)
	if err := l.device.IpcSet(config); err != nil {
		return fmt.Errorf("reach %s: %w", endpoint, err)
	}
	return nil
}

// Call calls a peer after Reach, and repeats that until it answers. It may be called again.
func (l *Link) Call(key hangar.PeerKey) error {
	raw := key.Bytes()
	// That keepalives are turned on is what makes it call at once.
	config := fmt.Sprintf("public_key=%s\nupdate_only=true\npersistent_keepalive_interval=0\npersistent_keepalive_interval=%d\n", hex.EncodeToString(raw[:]), keepaliveSeconds)
	if err := l.device.IpcSet(config); err != nil {
		return fmt.Errorf("call: %w", err)
	}
	return nil
}

// Lead lets a peer have the addresses of some prefixes and no longer of others, and routes to the
// device what is sent to them; source is what the host itself sends from. It may be repeated after
// an error.
func (l *Link) Lead(key hangar.PeerKey, add, remove []netip.Prefix, source netip.Addr) error {
	raw := key.Bytes()
	var config strings.Builder
	fmt.Fprintf(&config, "public_key=%s\nupdate_only=true\n", hex.EncodeToString(raw[:]))
	for _, p := range remove {
		fmt.Fprintf(&config, "allowed_ip=-%s\n", p)
	}
	for _, p := range add {
		fmt.Fprintf(&config, "allowed_ip=%s\n", p)
	}
	if err := l.device.IpcSet(config.String()); err != nil {
		return fmt.Errorf("lead to a peer: %w", err)
	}
	var errs []error
	for _, p := range remove {
		errs = append(errs, l.removeRoute(p))
	}
	for _, p := range add {
		errs = append(errs, l.addRoute(p, source))
	}
	return errors.Join(errs...)
}

// Forget ends the session of a peer, to which some prefixes lead, and takes no more packets of it.
func (l *Link) Forget(key hangar.PeerKey, prefixes []netip.Prefix) error {
	errs := []error{l.forget(key)}
	for _, p := range prefixes {
		errs = append(errs, l.removeRoute(p))
	}
	return errors.Join(errs...)
}
