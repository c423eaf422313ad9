// Package replica is a node of replicated SQLite databases: it captures what local programs commit, or follows
// another node that does, and reports the changes to its clients.
//
// The lease decides whether a node is the primary, whose databases may be written, or a replica. The databases
// are files in a directory: a mount that sees every commit, or a plain directory whose write-ahead logs are
// read. Package database knows the position of a database. This package connects it with capture, lease,
// replication and HTTP.
package replica

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/events"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/mount"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/stream"
	"github.com/hangar-platform/hangar/replica/tail"
)

// Capture is how a node observes commits.
type Capture string

// The kinds of Capture.
const (
	Auto   Capture = "auto"   // Strict where FUSE works, else Tail
	Strict Capture = "strict" // by a mount
	Tail   Capture = "tail"   // by reading write-ahead logs in a plain directory
)

// Defaults of a Config.
const (
	DefaultRetention    = 10 * time.Minute
	DefaultLogLimit     = 1 << 30
	DefaultTrimInterval = time.Minute
	DefaultSyncTimeout  = 10 * time.Second
	DefaultKeepAside    = 7 * 24 * time.Hour
)

// Config has the settings of a node.
type Config struct {
	Data       string // directory of the node's own data
	Dir        string // where programs find the databases: a mount point, or with Tail a plain directory
	Hostname   string // name of the node for clients, as in .primary and in events
	Lease      lease.Lease
	Candidate  bool // the node may become the primary, and counts for Replicas
	Capture    Capture
	AllowOther bool // programs of other users may use the mount
	// NoPassthrough disables passthrough, for tests.
	NoPassthrough bool
	// Sync makes every transaction durable before its commit returns.
	Sync bool
	// Replicas is how many candidates must have a transaction before its commit returns, and SyncTimeout how long
	// the commit waits for them; see docs/databases.md.
	Replicas    int
	SyncTimeout time.Duration
	// ProxyWaits says that a proxy delays the answers to writes until WaitReplicas returns. With Tail, commits
	// cannot wait, so Open fails if Replicas is set and ProxyWaits is not.
	ProxyWaits bool
	// ServerTLS configures the server of NewServer; nil: no TLS. With ClientCAs, requests that change the node or
	// read content of databases need a client certificate.
	ServerTLS *tls.Config
	// TLS is for connections to nodes whose URL begins with https; nil: the default of the machine.
	TLS *tls.Config
	// Dial opens connections to other nodes; nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Retention is how long transactions are kept. Older ones that a replica still needs are kept within
	// LogLimit bytes for each database.
	Retention    time.Duration
	LogLimit     int64
	TrimInterval time.Duration
	// KeepAside is how long files with transactions are kept that the node had and its primary lacked.
	KeepAside time.Duration
	Log       *slog.Logger
}

// capturer observes commits.
type capturer interface {
	Locks(db string, f database.File) (locks.Ranges, error)
	Written(db string, f database.File, off, n int64)
	Gone(db string, f database.File)
	Shared() bool         // SQLite and this process see the same index of a WAL
	Quiet(db string) bool // no program is writing
	Close() error
}

// Node is one node.
type Node struct {
	c      Config
	hub    *events.Hub
	sender *stream.Sender
	id     identity
	mode   string // description of capture
	strict bool

	captureMu sync.Mutex
	capture   capturer

	mu        sync.Mutex
	databases map[string]*database.DB
	upstream  lease.Peer // the primary to which it is connected
	heard     time.Time  // when the primary last confirmed that this node is up to date
	followed  bool       // heard is set

	observers observers

	aside         aside
	sync          syncing
	halts         halts
	forwards      forwards
	endConnection atomic.Pointer[context.CancelFunc] // ends the connection to the primary, so that a new one is opened
	roleMu        sync.Mutex                         // held while the node leads or follows
	leading       atomic.Uint64                      // epoch of the lease while the node is the primary; else 0
	holds         atomic.Int32                       // while it is not 0, no program may begin to write
	ready         chan struct{}                      // closed when the node has become the primary, or caught up with one
	once          sync.Once
}

// identity is the content of cluster.json.
type identity struct {
	Node    uint64 `json:"node"`
	Cluster string `json:"cluster,omitempty"`
	Epoch   uint64 `json:"epoch"`
}

// New returns a node. It does no I/O.
func New(c Config) *Node {
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.LogLimit = cmp.Or(c.LogLimit, DefaultLogLimit)
	c.TrimInterval = cmp.Or(c.TrimInterval, DefaultTrimInterval)
	c.Capture = cmp.Or(c.Capture, Auto)
	c.SyncTimeout = cmp.Or(c.SyncTimeout, DefaultSyncTimeout)
	c.KeepAside = cmp.Or(c.KeepAside, DefaultKeepAside)
	n := &Node{c: c, hub: events.New(), databases: map[string]*database.DB{}, ready: make(chan struct{})}
	n.forwards.held = map[string]forward{}
	n.halts.held = map[string]*halt{}
	n.sync.late, n.sync.last = map[string]ltx.TXID{}, map[string]ltx.TXID{}
	n.sender = &stream.Sender{Primary: n, Hostname: c.Hostname, Log: c.Log}
	return n
}

// Hub returns the source of the node's events.
func (n *Node) Hub() *events.Hub { return n.hub }

// ID returns the ID of the node.
func (n *Node) ID() uint64 { return n.id.Node }

func (n *Node) filesDir() string {
	if n.strict {
		return filepath.Join(n.c.Data, "files")
	}
	return n.c.Dir
}

// Open opens the databases, and makes them available in Config.Dir.
func (n *Node) Open() error {
	for _, dir := range []string{n.c.Data, filepath.Join(n.c.Data, "files"), filepath.Join(n.c.Data, "log"), n.asideDir()} {
		if err := durable.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := (opening{n}).loadIdentity(); err != nil {
		return err
	}
	// Files of a killed process.
	for _, pattern := range []string{"export-*", "files/.probe-*", "log/*/spool-*"} {
		left, err := filepath.Glob(filepath.Join(n.c.Data, pattern))
		if err != nil {
			return err
		}
		for _, name := range left {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	if err := n.aside.count(n.asideDir()); err != nil {
		return err
	}
	if err := (opening{n}).choose(); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}

func (n *Node) identityPath() string { return filepath.Join(n.c.Data, "cluster.json") }

func (n opening) loadIdentity() error {
	b, err := os.ReadFile(n.identityPath())
	if errors.Is(err, os.ErrNotExist) {
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		n.id.Node = binary.BigEndian.Uint64(id[:])
		return n.saveIdentity(n.id)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &n.id); err != nil {
		return fmt.Errorf("%s: %w", n.identityPath(), err)
	}
	return nil
}

func (n *Node) saveIdentity(id identity) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return durable.WriteFile(n.identityPath(), append(b, '\n'), 0o600)
}

// identify changes the cluster and the epoch of the node, once they are on the disk. The caller holds n.mu,
// without which ID reads the rest of n.id.
func (n *Node) identify(cluster string, epoch uint64) error {
	id := identity{n.id.Node, cluster, epoch}
	if id == n.id {
		return nil
	}
	if err := n.saveIdentity(id); err != nil {
		return err
	}
	n.id.Cluster, n.id.Epoch = cluster, epoch
	return nil
}

// opening finds the databases and begins to serve them.
type opening struct{ *Node }

// choose starts to capture with the configured or best method.
func (n opening) choose() error {
	if n.c.Capture != Tail {
		n.strict = true
		err := n.mount()
		if err == nil || n.c.Capture == Strict {
			return err
		}
		n.c.Log.Warn("the directory cannot be mounted: capture is tail instead of strict", "error", err)
		n.strict = false
		if err := n.closeDatabases(); err != nil {
			return err
		}
	}
	return n.tail()
}

// tail captures databases in a plain directory.
func (n opening) tail() error {
	if n.c.Replicas > 0 && !n.c.ProxyWaits {
		return errNoWait
	}
	if err := durable.MkdirAll(n.c.Dir, 0o755); err != nil {
		return err
	}
	if err := n.openAll(); err != nil {
		return err
	}
	t := tail.New(tail.Config{Dir: n.c.Dir, Databases: n.Node, Log: n.c.Log})
	n.captureMu.Lock()
	n.capture = t
	n.captureMu.Unlock()
	n.mode = "tail"
	n.c.Log.Info("capture is tail: databases must be in WAL mode", "dir", n.c.Dir)
	return nil
}

// mount serves the databases through FUSE.
func (n opening) mount() error {
	if err := mount.Supported(); err != nil {
		return err
	}
	fs := mount.New(mount.Config{
		Dir: n.c.Dir, Files: n.filesDir(), AllowOther: n.c.AllowOther, NoPassthrough: n.c.NoPassthrough,
		Databases: programs(n), Log: n.c.Log,
	})
	// The databases recover before any program can open them.
	if err := n.openAll(); err != nil {
		return err
	}
	if err := fs.Mount(); err != nil {
		return err
	}
	n.captureMu.Lock()
	n.capture = fs
	n.captureMu.Unlock()
	n.mode = "strict"
	if !fs.Passthrough() {
		n.mode = "strict, without passthrough"
	}
	n.c.Log.Info("capture is strict", "dir", n.c.Dir, "passthrough", fs.Passthrough())
	return nil
}

// openAll opens every database that has a file or a log.
func (n opening) openAll() error {
	names := map[string]bool{}
	files, err := os.ReadDir(n.filesDir())
	if err != nil {
		return err
	}
	for _, f := range files {
		name, kind := database.Split(f.Name())
		if kind != database.Main || !ValidName(name) || !f.Type().IsRegular() {
			continue
		}
		is := n.strict // the mount has made it
		if !is {
			if is, err = sqlite.IsDatabase(filepath.Join(n.filesDir(), name)); err != nil {
				return err
			}
		}
		names[name] = is
	}
	logs, err := os.ReadDir(filepath.Join(n.c.Data, "log"))
	if err != nil {
		return err
	}
	for _, l := range logs {
		info, err := os.Stat(filepath.Join(n.filesDir(), l.Name()))
		names[l.Name()] = err != nil || info.Mode().IsRegular()
	}
	for name, is := range names {
		if !is {
			continue
		}
		db, err := n.Database(name, true)
		if err != nil {
			return err
		}
		n.hub.Know(name, db.Pos())
	}
	return nil
}

// ValidName reports whether a database may have this name.
func ValidName(name string) bool {
	_, f := database.Split(name)
	return name != "" && len(name) <= 200 && f == database.Main && !strings.ContainsAny(name, "/\x00") &&
		!strings.HasPrefix(name, ".") && !strings.HasSuffix(name, "-pos") && !strings.HasSuffix(name, "-synced") && !strings.HasSuffix(name, "-lock")
}

// errNoWait is returned if commits would have to wait for replicas, and cannot.
var errNoWait = errors.New("with capture tail, commits cannot wait for replicas: set sync to 0, make FUSE work for capture strict, or use the proxy, whose answers wait")

// ErrName is returned for a name that no database may have.
var ErrName = errors.New("a database cannot have this name")
