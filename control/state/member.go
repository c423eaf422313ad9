package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// MemberConfig is what a member of a cluster is started with. It listens nowhere: what it serves is
// Paths.
type MemberConfig struct {
	Dir  string // that of EtcdConfig: a single member becomes one of a cluster
	Name string // of the host
	URL  string // where others reach it, e.g. "https://10.0.0.1:4281"
	// Certificate and Authority are files in PEM: what members prove with to each other who they
	// are, with the key, and what has signed it. They are read again at each connection.
	Certificate, Authority string
	ServerName             string        // in the certificates of all members
	Heartbeat              time.Duration // between members; an election takes ten; 0: DefaultHeartbeat
	QuotaBytes             int64         // see EtcdConfig
	History                int64         // see EtcdConfig
	Space                  *diskspace.Space
	NoSync                 bool // see EtcdConfig
	Log                    *slog.Logger
}

// DefaultHeartbeat is for members in one region.
const DefaultHeartbeat = 100 * time.Millisecond

const (
	maxLearners     = 4    // so that all of five members but the first can wait for the others
	keptForFollower = 5000 // writes, for members that were away
	tendEvery       = 2 * time.Second
	secondsOfTurn   = 60 // in which one of the members may defragment its file
)

// Paths are the patterns of http.ServeMux at which a member serves the others and clients.
func Paths() []string {
	return []string{
		"/raft", "/raft/", "/members", "/members/", "/leases", "/leases/", "/version", "/downgrade/",
		"/etcdserverpb.KV/", "/etcdserverpb.Watch/", "/etcdserverpb.Lease/", "/etcdserverpb.Cluster/", "/etcdserverpb.Maintenance/", "/grpc.health.v1.Health/",
	}
}

// member is a member of a cluster in this process.
type member struct {
	cfg    MemberConfig
	etcd   *embed.Etcd
	lock   *os.File
	room   *room
	peers  http.Handler
	calls  *grpc.Server
	client *clientv3.Client // of this member, in the process
	stop   context.CancelFunc
	tended sync.WaitGroup
}

// hasMember reports whether there is a member in the directory of a state.
func hasMember(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, memberDir, "member", "wal"))
	return err == nil
}

// startMember starts the member of a directory, or creates one: of a cluster of its own or, with
// peers, of the cluster of these peers, which has added it. Each peer is "name=URL". It does not
// wait for the member to be ready.
func startMember(ctx context.Context, cfg MemberConfig, peers []string) (_ *member, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	m := &member{cfg: cfg}
	if m.lock, err = lockDir(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = m.lock.Close()
		}
	}()
	m.room = &room{dir: filepath.Join(cfg.Dir, memberDir, "member"), space: cfg.Space}
	if err := m.room.open(cfg.Dir); err != nil {
		return nil, err
	}
	at, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	c := memberConfig(EtcdConfig{Dir: cfg.Dir, QuotaBytes: cfg.QuotaBytes, NoSync: cfg.NoSync, Log: cfg.Log})
	c.Name = cfg.Name
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{*at}, []url.URL{*at}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	if len(peers) > 0 {
		c.InitialCluster, c.ClusterState = strings.Join(peers, ","), embed.ClusterStateFlagExisting
	}
	beat := cmp.Or(cfg.Heartbeat, DefaultHeartbeat)
	c.TickMs, c.ElectionMs = uint(beat.Milliseconds()), uint(10*beat.Milliseconds())
	c.SnapshotCatchUpEntries = keptForFollower
	c.MaxLearners = maxLearners
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: cfg.Certificate, KeyFile: cfg.Certificate, TrustedCAFile: cfg.Authority, ServerName: cfg.ServerName, ClientCertAuth: true,
	}
	if m.etcd, err = embed.StartEtcd(c); err != nil {
		return nil, fmt.Errorf("state: start a member in %s: %w", cfg.Dir, err)
	}
	if err := m.room.keepProbe(); err != nil {
		cfg.Log.Warn("the next start needs room on the disk", "error", err)
	}
	m.client = v3client.New(m.etcd.Server)
	m.peers = etcdhttp.NewPeerHandler(zap.New(slogCore{log: cfg.Log}), m.etcd.Server)
	m.calls = v3rpc.Server(m.etcd.Server, nil, m.admit, grpc.MaxConcurrentStreams(1<<20))
	ctx, m.stop = finish.Lifetime(ctx)
	m.tended.Go(func() { m.tend(ctx) })
	return m, nil
}

// ServeHTTP serves the other members, and clients once the member is one that they can use.
func (m *member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		m.peers.ServeHTTP(w, r)
		return
	}
	if !m.ready() {
		http.Error(w, "the member starts", http.StatusServiceUnavailable)
		return
	}
	m.calls.ServeHTTP(w, r)
}

func (m *member) ready() bool {
	select {
	case <-m.etcd.Server.ReadyNotify():
		return true
	default:
		return false
	}
}

// id is the member's id in its cluster.
func (m *member) id() uint64 { return uint64(m.etcd.Server.MemberID()) }

// cluster is the id of its cluster.
func (m *member) cluster() uint64 { return uint64(m.etcd.Server.Cluster().ID()) }

// stopped is closed when the member has ended. It ends by itself only if its cluster has removed
// it, or if it cannot continue.
func (m *member) stopped() <-chan struct{} { return m.etcd.Server.StopNotify() }

// admit refuses writes that the disk has no room for; see room. Writes that other members admit do
// not pass through it; tend allocates room for them.
func (m *member) admit(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if write, ok := in.(*pb.TxnRequest); ok {
		var txn Txn
		for _, op := range write.Success {
			if put := op.GetRequestPut(); put != nil {
				txn.Then = append(txn.Then, Op{Key: string(put.Key), Value: put.Value})
			}
		}
		if len(txn.Then) > 0 {
			if err := m.room.admit(txn); err != nil {
				return nil, status.Error(codes.ResourceExhausted, err.Error())
			}
		}
	}
	return next(ctx, in)
}

// tend allocates room for writes, and makes the leader compact old revisions. In a cluster that refuses writes because a
// member has reached its quota, the leader keeps no old revisions, and each member makes room.
func (m *member) tend(ctx context.Context) {
	history := cmp.Or(m.cfg.History, DefaultHistory)
	for due := int64(0); pause.For(ctx, tendEvery) == nil; {
		if !m.ready() {
			continue
		}
		if m.room.space != nil {
			if err := m.room.take(); err != nil {
				m.cfg.Log.Warn("the state may need room on the disk that there is not", "error", err)
			}
		}
		now, keep := m.etcd.Server.KV().Rev(), history
		if due == 0 {
			due = now + history
		}
		full := slices.ContainsFunc(m.etcd.Server.Alarms(), func(a *pb.AlarmMember) bool { return a.Alarm == pb.AlarmType_NOSPACE })
		if full {
			keep, due = 0, min(due, now)
		}
		if m.leads() && now >= due && m.room.space.AdmitOwn(diskspace.CompactState) == nil {
			due = now + history
			m.compact(ctx, now-keep)
		}
		if full {
			m.makeRoom(ctx)
		}
	}
}

func (m *member) leads() bool { return m.etcd.Server.Leader() == m.etcd.Server.MemberID() }

// compact forgets what is needed only to read or watch revisions before revision.
func (m *member) compact(ctx context.Context, revision int64) {
	bounded, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	_, err := m.client.Compact(bounded, revision, clientv3.WithCompactPhysical())
	if err != nil && ctx.Err() == nil && !errors.Is(err, rpctypes.ErrCompacted) {
		m.cfg.Log.Warn("old revisions of the state are kept", "error", err)
	}
}

// makeRoom does what ends the refusal of writes, if less than half of the quota is in use. A member answers nothing while
// it defragments its file, so each does that in another minute, and does not lead meanwhile if another can. The leader
// lifts the alarm once its own file is small enough; a member whose file is still too large raises it again.
func (m *member) makeRoom(ctx context.Context) {
	server := m.etcd.Server
	db, quota := server.Backend(), cmp.Or(m.cfg.QuotaBytes, DefaultQuotaBytes)
	switch {
	case db.SizeInUse() >= quota/2:
	case db.Size() >= quota*3/4:
		members := server.Cluster().Members()
		turn := int(time.Now().Unix()/secondsOfTurn) % len(members)
		if members[turn].ID != server.MemberID() {
			return
		}
		if err := m.room.admitCopy(db); err != nil {
			m.cfg.Log.Warn("state file was not compacted", "error", err)
			return
		}
		if err := server.TryTransferLeadershipOnShutdown(); err != nil {
			m.cfg.Log.Warn("no other member of the cluster state can lead", "error", err)
			return
		}
		defragment(db, m.cfg.Log)
	case m.leads():
		disarm(ctx, m.client, DefaultTimeout, m.cfg.Log)
	}
}

// close ends the member. Requests that it serves end with it.
func (m *member) close() error {
	m.stop()
	m.tended.Wait()
	m.calls.Stop()
	err := m.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // closing an in-process client always returns it
	}
	m.etcd.Close()
	return errors.Join(err, m.lock.Close())
}
