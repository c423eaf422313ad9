package logs

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestFollow(t *testing.T) {
	s := open(t, Options{})
	lines := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	follow := func(q hangar.LogQuery) {
		all.Go(func() {
			for e, err := range s.Follow(ctx, ref.AppID, q) {
				if err != nil {
					t.Error(err)
				}
				lines <- e.Message
			}
			lines <- "end"
		})
	}
	next := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no line, want %q", want)
		}
	}
	follow(hangar.LogQuery{}) // of an app that has nothing yet
	for deadline := time.Now().Add(time.Minute); ; {
		s.mu.Lock()
		_, known := s.apps[ref.AppID]
		s.mu.Unlock()
		if known {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("does not follow")
		}
	}
	s.Append(ref, hangar.LogRunner, "info", "first")
	next("first")
	fifo := fifoOf(t)
	must(s.Capture(ref, fifo))
	f := machineOutput(t, fifo)
	write(t, f, "second\nthi")
	next("second")
	write(t, f, "rd\n")
	next("third")
	later := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "00000000000000"}
	s.Append(hangar.MachineRef{App: "other", AppID: "other", ID: "00000000000001"}, hangar.LogRunner, "info", "of another app")
	s.Append(later, hangar.LogRunner, "info", "of a machine that appears later")
	next("of a machine that appears later")
	must(s.Remove(later.ID))
	s.Append(ref, hangar.LogRunner, "info", "last")
	next("last")
	cancel()
	next("end")
	all.Wait()

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	follow(hangar.LogQuery{Limit: 2, Instance: ref.ID})
	next("third")
	next("last")
	cancel()
	next("end")
	all.Wait()
}

func TestFollowEndsWithTheStore(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "one")
	var got []error
	for _, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{}) {
		if got = append(got, err); len(got) == 1 {
			must(s.Close())
		}
	}
	if len(got) != 2 || got[0] != nil || hangar.CodeOf(got[1]) != hangar.CodeUnavailable {
		t.Errorf("yielded %v", got)
	}
	for _, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{}) {
		if hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("of a closed store: %v", err)
		}
	}
	for range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{Token: "x"}) {
		break
	}
}

// A follower of another region waits for nothing, and ends with the Store all the same.
func TestFollowOfAnotherRegionEndsWithTheStore(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "one")
	ended := make(chan []error)
	go func() {
		var got []error
		for _, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{Region: "fra"}) {
			got = append(got, err)
		}
		ended <- got
	}()
	must(s.Close())
	select {
	case got := <-ended:
		if len(got) != 1 || hangar.CodeOf(got[0]) != hangar.CodeUnavailable {
			t.Errorf("yielded %v", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("the follower does not end")
	}
}

// Every follower gets every written line once and in order.
func TestFollowMissesNothing(t *testing.T) {
	s := open(t, Options{MaxBytes: 1 << 20, MaxFiles: 1000})
	const machines, count = 4, 500
	refs := make([]hangar.MachineRef, machines)
	for i := range refs {
		refs[i] = hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			next := map[hangar.MachineID]int{}
			for total := 0; total < machines*count; {
				for e, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{Token: "0"}) {
					must(err)
					if want := strconv.Itoa(next[e.Instance]); e.Message != want {
						t.Errorf("machine %s: line %s, want %s", e.Instance, e.Message, want)
						return
					}
					next[e.Instance]++
					if total++; total == machines*count {
						break
					}
				}
			}
		})
	}
	for _, r := range refs {
		all.Go(func() {
			for i := range count {
				s.Append(r, hangar.LogRunner, "info", strconv.Itoa(i))
			}
		})
	}
	all.Wait()
}
