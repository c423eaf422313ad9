package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// bumpRevisions is how far a restored state is ahead of its backup, so that no revision that was
// used since is used again for something else.
const bumpRevisions = 1_000_000_000

// Backup writes the whole of the state as of one revision, in the form of an etcd snapshot. It has every transaction that
// ended before the call, on whichever server.
func (s *Etcd) Backup(ctx context.Context, w io.Writer) error {
	if s.closed.Load() {
		return ErrClosed
	}
	client, release, err := s.upToDate(ctx)
	if err != nil {
		return s.classify(ctx, "back up", "", err)
	}
	defer release()
	r, err := client.Snapshot(ctx)
	if err != nil {
		return s.classify(ctx, "back up", "", err)
	}
	defer r.Close()
	if _, err := io.Copy(w, r); err != nil {
		return s.classify(ctx, "back up", "", err)
	}
	return nil
}

// upToDate returns a client of one member that has everything that was committed before the call. A snapshot is of what
// one member has, and the client of all of them chooses a member for each call.
func (s *Etcd) upToDate(ctx context.Context) (client *clientv3.Client, release func(), err error) {
	linearizable := func(client *clientv3.Client) error {
		bounded, cancel := context.WithTimeout(ctx, s.limit)
		defer cancel()
		_, err := client.Get(bounded, s.prefix) // waits until the member has caught up
		return err
	}
	if s.dial == nil {
		return s.client, func() {}, linearizable(s.client)
	}
	for _, endpoint := range s.client.Endpoints() {
		if client, err = s.dial([]string{endpoint}); err != nil {
			return nil, nil, err
		}
		if err = linearizable(client); err == nil {
			return client, func() { _ = client.Close() }, nil
		}
		_ = client.Close()
	}
	return nil, nil, err
}

// restored is the identity of a directory's single member after Restore.
type restored struct{ name, url string }

var alone = restored{"hangar", embed.DefaultInitialAdvertisePeerURLs}

// Restore makes the state of a directory what a backup has, as that of a cluster of one member.
// The state that was there is kept beside it, in the directory that it returns; empty: there was
// none. No process may have the state open; it returns ErrLocked then.
func Restore(dir, backup string, now time.Time, log *slog.Logger) (kept string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	fresh := filepath.Join(dir, memberDir+".restored")
	if err := os.RemoveAll(fresh); err != nil { // left by an interrupted restore
		return "", err
	}
	err = snapshot.NewV3(zap.New(slogCore{log: log})).Restore(snapshot.RestoreConfig{
		SnapshotPath: backup, Name: alone.name, OutputDataDir: fresh, PeerURLs: []string{alone.url},
		InitialCluster: alone.name + "=" + alone.url, InitialClusterToken: "restored-" + now.UTC().Format(time.RFC3339Nano),
		RevisionBump: bumpRevisions, MarkCompacted: true,
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("state: restore %s: %w", backup, err), os.RemoveAll(fresh))
	}
	member := filepath.Join(dir, memberDir)
	if _, err := os.Lstat(member); err == nil {
		kept = member + ".before-" + now.UTC().Format("20060102T150405Z")
		if err := os.Rename(member, kept); err != nil {
			return "", err
		}
	}
	return kept, os.Rename(fresh, member)
}

// Recover makes the member of a directory a cluster of its own, with all that it has of the state,
// after the loss of so many others that none can be elected. What the others had and this one did
// not is lost. No process may have the state open; it returns ErrLocked then.
func Recover(ctx context.Context, dir string, log *slog.Logger) (err error) {
	if !hasMember(dir) {
		return fmt.Errorf("state: %s has no member of the cluster state", dir)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	c := memberConfig(EtcdConfig{Dir: dir, Log: log})
	c.ForceNewCluster = true
	m, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("state: recover %s: %w", dir, err)
	}
	defer m.Close()
	select {
	case <-m.Server.ReadyNotify():
		return nil
	case <-m.Server.StopNotify():
		return fmt.Errorf("state: recover %s: the member has ended", dir)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
