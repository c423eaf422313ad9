// Package catalog is the live view of every Machine of the cluster, in memory, from which the
// edge answers without a call to another process.
//
// Catalog has the Machines; Routes has the Apps, with their addresses and names, in the same way.
// Catalog follows a hangar.MachineFeed. Once Synced is closed, every earlier row is visible, and
// each change follows within the delay of the feed. When the feed breaks, the last view stays:
// stale rows route better than none, and the answer of a host takes precedence over its row. The
// catalog reconnects with backoff, and removes vanished rows once the new feed has yielded all
// rows. An older version of a row never replaces a newer one, and no reader sees a partial row.
//
// Run is the only writer. Lookups come from any goroutine, take a read lock for
// the time of a map access, and return rows that never change: a new version is a
// new row. Neither rows nor the slices returned may be modified.
//
// A row that makes no sense is skipped, logged and counted; it harms only its own App. The
// catalog chooses nothing: its readers pick the Machine for a request.
package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Catalog is the view. Use New.
type Catalog struct {
	feed    hangar.MachineFeed
	log     *slog.Logger
	synced  chan struct{} // closed when first all rows are in view
	once    sync.Once     // closes synced
	skipped atomic.Uint64

	// settling is held while a change is installed and observers are notified. Taken before mu.
	settling sync.Mutex

	mu        sync.RWMutex // guards what follows
	version   uint64       // grows with every change
	rows      map[hangar.MachineID]*hangar.MachineRow
	apps      map[hangar.AppID]*group
	places    map[place]*group
	addresses map[netip.Addr]hangar.MachineID // private ones

	subs subscriptions
}

// New returns an empty catalog; Run fills it.
func New(feed hangar.MachineFeed, log *slog.Logger) *Catalog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Catalog{
		feed:      feed,
		log:       log,
		synced:    make(chan struct{}),
		rows:      make(map[hangar.MachineID]*hangar.MachineRow),
		apps:      make(map[hangar.AppID]*group),
		places:    make(map[place]*group),
		addresses: make(map[netip.Addr]hangar.MachineID),
	}
}

// Synced is closed when every row from before the start is visible. It stays closed when the feed
// breaks.
func (c *Catalog) Synced() <-chan struct{} { return c.synced }

// Skipped counts the rows that made no sense.
func (c *Catalog) Skipped() uint64 { return c.skipped.Load() }

// Len is the number of rows.
func (c *Catalog) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.rows)
}

// Machine returns the row of a Machine.
func (c *Catalog) Machine(id hangar.MachineID) (*hangar.MachineRow, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	row, ok := c.rows[id]
	return row, ok
}

// AppMachines returns the rows of an App, sorted by id; none if it is unknown. The
// slice is a snapshot: two calls return the same one if nothing changed.
func (c *Catalog) AppMachines(app hangar.AppID) []*hangar.MachineRow { return c.App(app).Rows }

// App returns the rows of an App, as AppMachines does.
func (c *Catalog) App(app hangar.AppID) View {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.apps[app].view()
}

// View is rows at one moment.
type View struct {
	Rows []*hangar.MachineRow // sorted by id
	// Version is another one after every change of the rows, and 0 when there are none.
	Version uint64
}

// Network returns the rows of the Machines on a network that belong to the App of a name, or all
// of them if app is empty. It serves lookups by name, such as DNS.
func (c *Catalog) Network(id hangar.NetworkID, app hangar.AppName) View {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.places[place{id, app}].view()
}

// NetworkVersion returns the Version that Network would.
func (c *Catalog) NetworkVersion(id hangar.NetworkID, app hangar.AppName) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if g := c.places[place{id, app}]; g != nil {
		return g.version
	}
	return 0
}

// MachineAt returns the row of the Machine that has a private address.
func (c *Catalog) MachineAt(addr netip.Addr) (*hangar.MachineRow, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	row, ok := c.rows[c.addresses[addr]]
	return row, ok
}

// Apps returns the ids of all Apps that have a row, sorted.
func (c *Catalog) Apps() []hangar.AppID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	ids := make([]hangar.AppID, 0, len(c.apps))
	for id := range c.apps {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Run follows the feed until ctx ends, and returns its error.
func (c *Catalog) Run(ctx context.Context) error {
	return pause.Between(ctx, pause.Feeds, c.follow, func(err error) {
		c.log.Warn("feed broke, will be taken up again", "feed", "machines", "error", err)
	})
}

var errFeedEnded = errors.New("feed ended")

// follow consumes the feed once.
func (c *Catalog) follow(ctx context.Context) error {
	synced := false
	seen := make(map[hangar.MachineID]bool)
	for change, err := range c.feed.WatchMachines(ctx) {
		if err != nil {
			return err
		}
		switch {
		case change.Synced:
			if !synced {
				c.dropUnseen(seen)
				seen, synced = nil, true
				c.once.Do(func() { close(c.synced) })
			}
		case change.Row == nil:
			delete(seen, change.ID)
			if row := c.remove(change.ID); row != nil {
				c.subs.notify(row.Machine.AppID)
			}
		default:
			if !synced {
				seen[change.ID] = true
			}
			c.put(change.ID, change.Row)
		}
	}
	return errFeedEnded
}

// put takes a row.
func (c *Catalog) put(id hangar.MachineID, row *hangar.MachineRow) {
	if err := c.replace(id, row); err != nil {
		c.skipped.Add(1)
		c.log.Error("machine row makes no sense, skipped", "machine", string(id), "app", string(row.Machine.App), "error", err)
	}
}

func (c *Catalog) replace(id hangar.MachineID, row *hangar.MachineRow) error {
	if err := check(id, row); err != nil {
		return err
	}
	c.settling.Lock()
	old, changed, err := c.install(id, row)
	if changed {
		c.tell(old, row)
	}
	c.settling.Unlock()
	if err != nil || !changed {
		return err
	}
	c.subs.notify(row.Machine.AppID)
	return nil
}

// install returns false for a row that is not newer than the visible one, old.
func (c *Catalog) install(id hangar.MachineID, row *hangar.MachineRow) (old *hangar.MachineRow, changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old = c.rows[id]
	if old != nil {
		if old.Machine.AppID != row.Machine.AppID || old.Machine.App != row.Machine.App || old.Network != row.Network {
			// Neither changes during a Machine's life, so the writer of this row does not own the
			// Machine.
			return old, false, fmt.Errorf("it belongs to app %s and network %d", old.Machine.AppID, old.Network)
		}
		if old.Machine.Host == row.Machine.Host && row.Seq <= old.Seq {
			return old, false, nil
		}
	}
	if old != nil {
		c.forgetAddress(old)
	}
	c.version++
	c.rows[id] = row
	put(c.apps, row.Machine.AppID, row, c.version)
	put(c.places, place{row.Network, row.Machine.App}, row, c.version)
	put(c.places, place{row.Network, ""}, row, c.version)
	if ip := row.Machine.PrivateIP; ip.IsValid() {
		c.addresses[ip] = id
	}
	return old, true, nil
}

// check returns the faults of a row by itself.
func check(id hangar.MachineID, row *hangar.MachineRow) error {
	m := &row.Machine
	switch {
	case m.ID != id:
		return fmt.Errorf("it names machine %q", m.ID)
	case m.App == "" || m.AppID == "":
		return errors.New("it names no app")
	case !m.State.Valid():
		return fmt.Errorf("unknown state %q", m.State)
	}
	return nil
}

// remove returns the row that it removes, or nil, and leaves it to the caller to notify subscribers.
func (c *Catalog) remove(id hangar.MachineID) *hangar.MachineRow {
	c.settling.Lock()
	defer c.settling.Unlock()
	c.mu.Lock()
	row := c.removeLocked(id)
	c.mu.Unlock()
	if row != nil {
		c.tell(row, nil)
	}
	return row
}

func (c *Catalog) removeLocked(id hangar.MachineID) *hangar.MachineRow {
	row, ok := c.rows[id]
	if !ok {
		return nil
	}
	delete(c.rows, id)
	c.forgetAddress(row)
	c.version++
	drop(c.apps, row.Machine.AppID, id, c.version)
	drop(c.places, place{row.Network, row.Machine.App}, id, c.version)
	drop(c.places, place{row.Network, ""}, id, c.version)
	return row
}

// forgetAddress forgets the owner of a row's address, unless it is another one's.
func (c *Catalog) forgetAddress(row *hangar.MachineRow) {
	if ip := row.Machine.PrivateIP; c.addresses[ip] == row.Machine.ID {
		delete(c.addresses, ip)
	}
}

// dropUnseen removes rows that a whole feed did not show.
func (c *Catalog) dropUnseen(seen map[hangar.MachineID]bool) {
	c.mu.RLock()
	var gone []hangar.MachineID
	for id := range c.rows {
		if !seen[id] {
			gone = append(gone, id)
		}
	}
	c.mu.RUnlock()
	apps := map[hangar.AppID]bool{}
	for _, id := range gone {
		if row := c.remove(id); row != nil {
			apps[row.Machine.AppID] = true
		}
	}
	for app := range apps {
		c.subs.notify(app)
	}
}

// place is the Apps of a name on a network; without an App, the whole network.
type place struct {
	network hangar.NetworkID
	app     hangar.AppName
}

// group is the rows of one App or place. Catalog.mu guards members and version.
type group struct {
	members map[hangar.MachineID]*hangar.MachineRow
	version uint64 // the Catalog's, when the group last changed
	// list is members, sorted; nil after a change. Readers build it, who hold the
	// read lock: two may build the same list at once, and either is right.
	list atomic.Pointer[[]*hangar.MachineRow]
}

func (g *group) view() View {
	if g == nil {
		return View{}
	}
	return View{Rows: g.sorted(), Version: g.version}
}

func (g *group) sorted() []*hangar.MachineRow {
	if g == nil {
		return nil
	}
	if list := g.list.Load(); list != nil {
		return *list
	}
	list := make([]*hangar.MachineRow, 0, len(g.members))
	for _, row := range g.members {
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b *hangar.MachineRow) int { return cmp.Compare(a.Machine.ID, b.Machine.ID) })
	g.list.Store(&list)
	return list
}

func put[K comparable](groups map[K]*group, key K, row *hangar.MachineRow, version uint64) {
	g, ok := groups[key]
	if !ok {
		g = &group{members: make(map[hangar.MachineID]*hangar.MachineRow)}
		groups[key] = g
	}
	g.members[row.Machine.ID] = row
	g.version = version
	g.list.Store(nil)
}

func drop[K comparable](groups map[K]*group, key K, id hangar.MachineID, version uint64) {
	g := groups[key]
	delete(g.members, id)
	g.version = version
	g.list.Store(nil)
	if len(g.members) == 0 {
		delete(groups, key)
	}
}
