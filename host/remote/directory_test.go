package remote_test

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/remote"
)

func hostIDs(hosts []hangar.Host) (ids []hangar.HostID) {
	for _, h := range hosts {
		ids = append(ids, h.ID)
	}
	return ids
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestDirectoryFollowsHosts(t *testing.T) {
	s := &stub{id: other, room: func() (hangar.HostRoom, error) { return hangar.HostRoom{Memory: 7}, nil }}
	w := newWorld(t, s, s)
	if a, err := w.Agent(self); err != nil || a.Host().ID != self {
		t.Errorf("got %v", err)
	}
	if _, err := w.Agent("0000dddd"); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if _, err := w.Gate("0000dddd"); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	w.await(func() bool { return w.Admits(other) && !w.Admits("0000dddd") }) // once the feed is in sync
	for _, c := range []struct {
		host    hangar.Host
		placing []hangar.HostID
		known   []hangar.HostID
		code    hangar.Code // of a call
	}{
		{hangar.Host{ID: other, Address: w.line.address, State: hangar.HostAlive}, []hangar.HostID{self, other}, []hangar.HostID{self, other}, ""},
		{hangar.Host{ID: other, Address: w.line.address, State: hangar.HostAlive, Cordoned: true}, []hangar.HostID{self}, []hangar.HostID{self, other}, ""},
		{hangar.Host{ID: other, Address: w.line.address, State: hangar.HostSuspect}, []hangar.HostID{self}, []hangar.HostID{self, other}, ""},
		{hangar.Host{ID: other, Address: w.line.address, State: hangar.HostDead}, []hangar.HostID{self}, []hangar.HostID{self}, hangar.CodeUnavailable},
		{hangar.Host{ID: other, State: hangar.HostAlive}, []hangar.HostID{self, other}, []hangar.HostID{self, other}, hangar.CodeUnavailable},
		{hangar.Host{ID: other, Address: w.line.address, State: hangar.HostAlive, Name: "back"}, []hangar.HostID{self, other}, []hangar.HostID{self, other}, ""},
	} {
		w.feed.put(c.host)
		w.await(func() bool {
			return equal(hostIDs(w.Hosts()), c.placing) && equal(hostIDs(w.Known()), c.known) && hangar.CodeOf(callRoom(t, w)) == c.code
		})
	}
	if a := w.agent(); a.Host().Name != "back" {
		t.Errorf("got %+v", a.Host())
	}
	w.feed.put(hangar.Host{ID: self, Cordoned: true})
	w.await(func() bool { return equal(hostIDs(w.Hosts()), []hangar.HostID{other}) })
	w.feed.remove(other)
	w.await(func() bool { return equal(hostIDs(w.Known()), []hangar.HostID{self}) && !w.Admits(other) })
	if err := callRoom(t, w); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("got %v", err)
	}
}

// TestPushedBeforeTheFeed: that a host is not known yet does not say that it is gone, and with it what it holds.
func TestPushedBeforeTheFeed(t *testing.T) {
	s := &stub{id: self}
	d := remote.NewDirectory(remote.DirectoryConfig{Agent: s, Gate: s})
	if _, err := d.Pushed(other); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("before the feed: %v", err)
	}
	w := newWorld(t, s, s)
	w.await(func() bool { return !w.Admits("0000dddd") }) // once the feed is in sync
	if _, err := w.Pushed("0000dddd"); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("a host that is not one of the cluster: %v", err)
	}
}

func callRoom(t *testing.T, w *world) error {
	t.Helper()
	a, err := w.Agent(other)
	if err == nil {
		_, err = a.Room(t.Context())
	}
	return err
}

// TestDirectoryFollowsAnew: hosts that a restarted feed does not yield any more are gone.
func TestDirectoryFollowsAnew(t *testing.T) {
	s := &stub{id: other}
	w := newWorld(t, s, s)
	next := hangar.Host{ID: "0000cccc", Address: w.line.address}
	w.feed.restart(hangar.HostChange{ID: next.ID, Host: &next}, hangar.HostChange{Synced: true})
	w.await(func() bool { return equal(hostIDs(w.Known()), []hangar.HostID{self, next.ID}) })
}

// TestDeadHostsVanish from a restarted feed as others do.
func TestDeadHostsVanish(t *testing.T) {
	s := &stub{id: other}
	w := newWorld(t, s, s)
	w.feed.put(hangar.Host{ID: other, Address: w.line.address, State: hangar.HostDead})
	w.await(func() bool { return hangar.CodeOf(callRoom(t, w)) == hangar.CodeUnavailable })
	w.feed.restart(hangar.HostChange{Synced: true})
	w.await(func() bool { return hangar.CodeOf(callRoom(t, w)) == hangar.CodeNotFound })
}

// TestUnreadConnectionsHoldUpNoChange: a host that moves is found at its new address, whatever the
// clients of its Machines do.
func TestUnreadConnectionsHoldUpNoChange(t *testing.T) {
	w, caller, program := dialled(t)
	var sent atomic.Int64
	var writing sync.WaitGroup
	writing.Go(func() {
		for piece := make([]byte, 16<<10); ; {
			n, err := program.Write(piece)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = program.Close()
		writing.Wait()
	})
	w.await(func() bool { return sent.Load() > 160<<10 })
	w.feed.put(hangar.Host{ID: other, Address: "127.0.0.1:1"})
	w.feed.put(hangar.Host{ID: "0000cccc"})
	w.await(func() bool { return len(w.Known()) == 3 })
	if _, err := io.Copy(io.Discard, caller); err == nil {
		t.Error("a lost connection looks like one that has ended")
	}
}
