package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// filter is the instance's nftables table: the content of its sets, and its rules. It restores the
// table when another program has changed it.
type filter struct {
	gateway  *gateway
	allowed  []netip.Prefix
	most     uint32 // Options.MaxConnections
	log      *slog.Logger
	firewall *firewall // of the host's namespace; set by Open

	membership sync.Mutex               // held while the sets change
	members    map[hangar.NetworkID]int // how many of each network are on this host
	ingress    map[netip.Addr]struct{}  // private addresses at which the host serves Apps
	ports      map[OpenPort]struct{}    // of the host that are open to Machines
}

// table is the instance's nftables table on the host.
func (t *filter) table() *nftables.Table {
	return &nftables.Table{Name: "hangar_" + t.gateway.instance, Family: nftables.TableFamilyINet}
}

// standIn is the table that holds the rules while the instance's table is replaced.
func (t *filter) standIn() *nftables.Table {
	table := t.table()
	table.Name += "/stand-in"
	return table
}

// installRules replaces the instance's table, with the current content of its sets.
func (t *filter) installRules() error {
	t.membership.Lock()
	defer t.membership.Unlock()
	return t.replaceTable()
}

// replaceTable creates the instance's table again. t.membership is held.
//
// One transaction would leave a gap: the kernel makes the sets of ranges searchable only
// after the transaction has taken effect and the hooks of the old table are gone. Until
// then, no device matches the set of own devices. So a second table with the same rules
// stands in, and the sets of a table are made before its rules.
func (t *filter) replaceTable() (err error) {
	table := t.table()
	replaces, err := t.firewall.has(table)
	if err != nil {
		return fmt.Errorf("look for nftables table %s: %w", table.Name, err)
	}
	defer func() { err = errors.Join(err, t.firewall.remove(t.standIn())) }() // even one that a crash has left
	if replaces {
		if err := t.install(t.standIn()); err != nil {
			return err
		}
		afterPackets()
	}
	if err := t.install(table); err != nil {
		return err
	}
	if replaces {
		afterPackets()
	}
	return nil
}

// install makes a table of the instance's rules, replacing an existing one.
func (t *filter) install(table *nftables.Table) error {
	var s sets
	err := t.firewall.change(func(c *nftables.Conn) (err error) {
		c.AddTable(table) // deleting a missing table would fail
		c.DelTable(table)
		c.AddTable(table)
		s, err = t.addSets(c, table)
		return err
	})
	if err == nil {
		err = t.firewall.change(func(c *nftables.Conn) error {
			t.addRules(c, table, s)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("install nftables table %s: %w", table.Name, err)
	}
	return nil
}

// afterPackets returns when the kernel has finished every packet that it was processing: such a
// packet may bypass a table whose hooks were added after it arrived.
func afterPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: waits for RCU readers, and every hook is one
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		<-time.After(100 * time.Millisecond) // the call is missing, or some processors are tickless
	}
}

// trackedFile has the number of connections that the kernel can track.
const trackedFile = "/proc/sys/net/netfilter/nf_conntrack_max"

// maxConnections is Options.MaxConnections with its default.
func (t *filter) maxConnections() uint32 {
	const share, least = 32, 1024
	if t.most > 0 {
		return t.most
	}
	raw, err := os.ReadFile(trackedFile)
	if err != nil {
		return least // the file appears with the first rule that tracks connections
	}
	all, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
	if err != nil {
		return least
	}
	return max(least, uint32(all/share))
}

// removeRules deletes the instance's tables. A missing one is not an error.
func (t *filter) removeRules() error {
	return t.firewall.remove(t.standIn(), t.table())
}

// dropIngress keeps packets from the kernel's own stack in a Machine's namespace. The sandbox taps
// the device before the hook. Without the hook, the kernel would reset connections that are about to
// be restored, while it has the addresses.
func dropIngress(ns *os.File) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return fmt.Errorf("open nftables of the namespace: %w", err)
	}
	table := &nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev}
	c.AddTable(table)
	chain := baseChain(table, "ingress", nftables.ChainTypeFilter, nftables.ChainHookIngress, nftables.ChainPriorityFilter)
	chain.Device = eth0
	policy := nftables.ChainPolicyDrop
	chain.Policy = &policy
	c.AddChain(chain)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("drop ingress of the namespace: %w", err)
	}
	return nil
}

func baseChain(t *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	return &nftables.Chain{Table: t, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &policy}
}

// ownIPv6 matches the private addresses of this host, in any network.
func (t *filter) ownIPv6(f field) []expr.Any {
	h, _ := hostBits(t.gateway.host)
	mask := [16]byte{0: 0xff, 1: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff}
	want := [16]byte{0: 0xfd, 1: 0xaa}
	binary.BigEndian.PutUint32(want[6:], h)
	return masked6(f, mask, expr.CmpOpEq, want)
}

// servicesIPv6 matches the address of the platform's services, with or without a network in it. Peers
// use the form with a network.
func servicesIPv6() []expr.Any {
	var mask [16]byte
	for i := range mask {
		if i < networkOffset || i >= networkOffset+4 {
			mask[i] = 0xff
		}
	}
	return masked6(destination, mask, expr.CmpOpEq, hangar.ServicesAddress.As16())
}
