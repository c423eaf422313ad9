package remote_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
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
	if !w.Admits(other) || w.Admits("0000dddd") {
		t.Error("it admits whom it should not, or the other way round")
	}
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
