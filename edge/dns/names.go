package dns

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
)

// node has the records of a name of the private network. A node without records means that the name
// exists.
type node struct {
	addresses records // AAAA
	text      records // TXT
	pointer   records // PTR

	// version is that of the rows that the node was built from: those of app on its network, those of
	// the whole network, or the row of one machine at host. The node is valid while it is unchanged.
	app     hangar.AppName
	machine hangar.MachineID
	host    hangar.HostID
	version uint64
	// changeable nodes are built from other sources, and are never cached.
	changeable bool
}

// valid reports whether the rows that n was built from are unchanged.
func (n *node) valid(c *catalog.Catalog, network hangar.NetworkID) bool {
	if n.machine != "" {
		row, ok := c.Machine(n.machine)
		return ok && row.Seq == n.version && row.Machine.Host == n.host
	}
	return n.version == c.NetworkVersion(network, n.app)
}

func (n *node) bytes() int { return len(n.addresses.wire) + len(n.text.wire) }

// names answers questions about one network.
type names struct {
	network hangar.NetworkID
	asker   netip.Addr
	catalog *catalog.Catalog
	region  hangar.Region
	peers   func(hangar.NetworkID) []Peer
}

// find returns the node of a name; nil if the name does not exist. labels are those before
// ".internal".
func (n *names) find(labels []string) *node {
	if len(labels) == 0 {
		return &node{changeable: true}
	}
	last := len(labels) - 1
	switch below := labels[:last]; labels[last] {
	case "_apps":
		return n.allApps(below)
	case "_instances":
		return n.allInstances(below)
	case "_peer":
		return n.peer(below)
	case "_api":
		if len(below) > 0 {
			return nil
		}
		return &node{addresses: addressRecords([]netip.Addr{n.services()}, true), changeable: true}
	default:
		return n.app(hangar.AppName(labels[last]), below)
	}
}

// app returns the node of a name below that of an App.
func (n *names) app(name hangar.AppName, labels []string) *node {
	if len(labels) == 2 && labels[1] == "vm" {
		return n.machine(name, hangar.MachineID(labels[0]))
	}
	view := n.catalog.Network(n.network, name)
	rows := registered(n.network, view.Rows)
	if len(rows) == 0 {
		return nil
	}
	found := n.inApp(rows, labels)
	if found != nil {
		found.app, found.version = name, view.Version
	}
	return found
}

// machine returns the node of one Machine. It does not read other Machines, so their number and
// changes do not matter.
func (n *names) machine(app hangar.AppName, id hangar.MachineID) *node {
	row, ok := n.catalog.Machine(id)
	if !ok || row.Network != n.network || row.Machine.App != app {
		return nil
	}
	found := nodeIfAny(registered(n.network, []*hangar.MachineRow{row}))
	if found != nil {
		found.machine, found.host, found.version = id, row.Machine.Host, row.Seq
	}
	return found
}

func (n *names) inApp(rows []*hangar.MachineRow, labels []string) *node {
	switch strings.Join(labels, ".") {
	case "", "global":
		return addressNode(rows)
	case "vms":
		return vmsNode(started(rows))
	case "all.vms":
		return vmsNode(rows)
	case "regions":
		return regionsNode(started(rows))
	case "all.regions":
		return regionsNode(rows)
	case "vm", "process", "of", "nearest.of", "_metadata", "kv._metadata":
		return &node{} // other names are below these
	}
	last := len(labels) - 1
	switch {
	case len(labels) == 1:
		return nodeIfAny(matching(rows, func(m *hangar.Machine) bool { return string(m.Region) == labels[0] }))
	case len(labels) == 2 && labels[1] == "process":
		return nodeIfAny(matching(rows, func(m *hangar.Machine) bool {
			return hasMetadata(m, hangar.MetadataProcessGroup.Original, labels[0])
		}))
	case len(labels) == 3 && labels[1] == "nearest" && labels[2] == "of":
		return n.nearest(rows, labels[0])
	case last >= 2 && labels[last] == "_metadata" && labels[last-1] == "kv":
		return metadataNode(rows, labels[last-2], labels[:last-2])
	}
	return nil
}

// nearest returns the node of topN: the first N started Machines, those in the server's region first,
// always in the same order.
func (n *names) nearest(rows []*hangar.MachineRow, label string) *node {
	digits, ok := strings.CutPrefix(label, "top")
	count, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || count == 0 {
		return nil
	}
	rows = slices.Clone(started(rows))
	slices.SortStableFunc(rows, func(a, b *hangar.MachineRow) int {
		return cmp.Or(
			-compareBool(a.Machine.Region == n.region, b.Machine.Region == n.region),
			cmp.Compare(a.Machine.Region, b.Machine.Region),
		)
	})
	return &node{addresses: addressRecords(addresses(rows[:min(len(rows), int(count))]), true)}
}

// compareBool is negative if only b is true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// metadataNode returns the node of the Machines that have a metadata pair. The value may contain
// dots. The name without a value exists if any Machine has the key.
func metadataNode(rows []*hangar.MachineRow, key string, value []string) *node {
	if len(value) == 0 {
		if len(matching(rows, func(m *hangar.Machine) bool { return hasKey(m, key) })) == 0 {
			return nil
		}
		return &node{}
	}
	wanted := strings.Join(value, ".")
	return nodeIfAny(matching(rows, func(m *hangar.Machine) bool { return hasMetadata(m, key, wanted) }))
}

// hasMetadata compares without regard to case, like names.
func hasMetadata(m *hangar.Machine, key, value string) bool {
	for k, v := range m.Config.Metadata {
		if strings.EqualFold(v, value) && sameKey(k, key) {
			return true
		}
	}
	return false
}

func hasKey(m *hangar.Machine, key string) bool {
	for k := range m.Config.Metadata {
		if sameKey(k, key) {
			return true
		}
	}
	return false
}

// sameKey considers the two spellings of the process group equal.
func sameKey(a, b string) bool {
	return strings.EqualFold(a, b) || isGroup(a) && isGroup(b)
}

func isGroup(key string) bool {
	return strings.EqualFold(key, hangar.MetadataProcessGroup.Original) || strings.EqualFold(key, hangar.MetadataProcessGroup.Neutral)
}

// services is the address of the platform's services for the asker. For a peer, to which only its
// network is routed, the address contains the number of the network.
func (n *names) services() netip.Addr {
	if n.peers != nil && slices.ContainsFunc(n.peers(n.network), func(p Peer) bool { return p.Addr == n.asker }) {
		a := hangar.ServicesAddress.As16()
		binary.BigEndian.PutUint32(a[2:], uint32(n.network))
		return netip.AddrFrom16(a)
	}
	return hangar.ServicesAddress
}

// allApps is the list of the network's Apps.
func (n *names) allApps(below []string) *node {
	if len(below) > 0 {
		return nil
	}
	view := n.catalog.Network(n.network, "")
	var apps []string
	for _, r := range registered(n.network, view.Rows) {
		apps = append(apps, string(r.Machine.App))
	}
	slices.Sort(apps)
	return &node{text: textRecord(slices.Compact(apps), ","), version: view.Version}
}

// allInstances is the list of the network's Machines.
func (n *names) allInstances(below []string) *node {
	view := n.catalog.Network(n.network, "")
	rows := registered(n.network, view.Rows)
	switch {
	case len(below) == 0:
		rows = started(rows)
	case len(below) > 1 || below[0] != "all":
		return nil
	}
	var items []string
	for _, r := range rows {
		m := &r.Machine
		items = append(items, "instance="+string(m.ID)+",app="+string(m.App)+",ip="+m.PrivateIP.String()+",region="+string(m.Region))
	}
	return &node{text: textRecord(items, ";"), version: view.Version}
}

// peer returns the list of the network's peers, or one of them. Peers of a single session have
// generated names and are not listed.
func (n *names) peer(below []string) *node {
	if len(below) > 1 {
		return nil
	}
	var peers []Peer
	if n.peers != nil {
		peers = n.peers(n.network)
	}
	found := &node{changeable: true}
	if len(below) == 1 {
		at := slices.IndexFunc(peers, func(p Peer) bool { return strings.EqualFold(p.Name, below[0]) })
		if at < 0 {
			return nil
		}
		found.addresses = addressRecords([]netip.Addr{peers[at].Addr}, true)
		return found
	}
	var listed []string
	for _, p := range peers {
		if !strings.HasPrefix(p.Name, "interactive-") {
			listed = append(listed, p.Name)
		}
	}
	slices.Sort(listed)
	found.text = textRecord(listed, ",")
	return found
}

// registered returns the Machines that have names: all that exist, unless their config disables it.
// It omits rows whose address is in another network.
func registered(network hangar.NetworkID, rows []*hangar.MachineRow) []*hangar.MachineRow {
	drop := func(r *hangar.MachineRow) bool {
		m := &r.Machine
		return m.State == hangar.MachineDestroyed || m.Config.DNS != nil && m.Config.DNS.SkipRegistration ||
			networkOf(m.PrivateIP) != network
	}
	if !slices.ContainsFunc(rows, drop) {
		return rows
	}
	return slices.DeleteFunc(slices.Clone(rows), drop)
}

func started(rows []*hangar.MachineRow) []*hangar.MachineRow {
	return matching(rows, func(m *hangar.Machine) bool { return m.State == hangar.MachineStarted })
}

func matching(rows []*hangar.MachineRow, want func(*hangar.Machine) bool) []*hangar.MachineRow {
	var out []*hangar.MachineRow
	for _, r := range rows {
		if want(&r.Machine) {
			out = append(out, r)
		}
	}
	return out
}

// nodeIfAny is the node of a name that exists only while it has Machines.
func nodeIfAny(rows []*hangar.MachineRow) *node {
	if len(rows) == 0 {
		return nil
	}
	return addressNode(rows)
}

// addressNode has the addresses of the started ones.
func addressNode(rows []*hangar.MachineRow) *node {
	return &node{addresses: addressRecords(addresses(started(rows)), false)}
}

func addresses(rows []*hangar.MachineRow) []netip.Addr {
	out := make([]netip.Addr, 0, len(rows))
	for _, r := range rows {
		out = append(out, r.Machine.PrivateIP)
	}
	return out
}

func vmsNode(rows []*hangar.MachineRow) *node {
	var items []string
	for _, r := range rows {
		items = append(items, string(r.Machine.ID)+" "+string(r.Machine.Region))
	}
	return &node{text: textRecord(items, ",")}
}

func regionsNode(rows []*hangar.MachineRow) *node {
	var items []string
	for _, r := range rows {
		items = append(items, string(r.Machine.Region))
	}
	slices.Sort(items)
	return &node{text: textRecord(slices.Compact(items), ",")}
}

func addressRecords(addrs []netip.Addr, fixed bool) records {
	r := records{count: len(addrs), fixed: fixed}
	for _, a := range addrs {
		before := len(r.wire)
		r.wire = appendRecord(r.wire, dns.TypeAAAA, a.AsSlice())
		r.each = len(r.wire) - before
	}
	return r
}

// maxText is how many bytes of text fit into a message beside the question, without the lengths of
// the strings.
const maxText = 64_800

// textRecord returns one record of the items, in strings of at most 255 bytes that clients join
// without a separator. It omits the items that do not fit into a message.
func textRecord(items []string, separator string) records {
	var text []byte
	for i, item := range items {
		if i > 0 {
			item = separator + item
		}
		if len(text)+len(item) > maxText {
			break
		}
		text = append(text, item...)
	}
	if len(text) == 0 {
		return records{}
	}
	var data []byte
	for chunk := range slices.Chunk(text, 255) {
		data = append(data, byte(len(chunk)))
		data = append(data, chunk...)
	}
	return records{wire: appendRecord(nil, dns.TypeTXT, data), count: 1}
}
