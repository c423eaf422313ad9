package access

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func line(n int) hangar.LogEntry {
	return hangar.EdgeRequest{Method: "GET", Path: fmt.Sprint("/", n), Proto: "HTTP/1.1", Status: 200}.Entry(time.Unix(int64(n), 0), "", "loc")
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		if l.Wanted("web") {
			t.Error("lines are wanted without a reader")
		}
		l.Publish("web", line(0))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		counts := make([]int, 3)
		for i, app := range []hangar.AppID{"web", "web", "other"} {
			all.Go(func() {
				for e, err := range l.FollowEdge(ctx, app) {
					if err != nil || e.Edge == nil {
						t.Errorf("%+v, %v", e, err)
					}
					counts[i]++
				}
			})
		}
		synctest.Wait()
		if !l.Wanted("web") || !l.Wanted("other") || l.Wanted("none") {
			t.Error("it is not known who follows")
		}
		for n := range 10 {
			l.Publish("web", line(n))
		}
		l.Publish("other", line(0))
		l.Publish("none", line(0))
		synctest.Wait()
		cancel()
		all.Wait()
		if fmt.Sprint(counts) != "[10 10 1]" {
			t.Errorf("lines: %v", counts)
		}
		if l.Wanted("web") || len(l.apps) != 0 || l.followers.Load() != 0 {
			t.Error("a follower is left")
		}
	})
}

func TestSlowFollowerIsToldWhatItLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		next := make(chan struct{})
		got := make(chan hangar.LogEntry)
		ctx, cancel := context.WithCancel(t.Context())
		var follower sync.WaitGroup
		follower.Go(func() {
			for e := range l.FollowEdge(ctx, "web") {
				got <- e
				<-next
			}
		})
		synctest.Wait()
		l.Publish("web", line(0))
		if e := <-got; e.Edge.Path != "/0" {
			t.Errorf("first: %+v", e)
		}
		for n := range Backlog + 5 {
			l.Publish("web", line(n+1))
		}
		next <- struct{}{}
		if e := <-got; e.Edge != nil || e.Level != "warn" || e.Message != "5 lines are left out: they came faster than they were read" {
			t.Errorf("after a pause: %+v", e)
		}
		for n := range Backlog {
			next <- struct{}{}
			if e := <-got; e.Edge == nil || e.Edge.Path != fmt.Sprint("/", n+1) {
				t.Fatalf("line %d: %+v", n, e)
			}
		}
		next <- struct{}{}
		cancel()
		follower.Wait()
	})
}

func BenchmarkWanted(b *testing.B) {
	l := New()
	b.ReportAllocs()
	for b.Loop() {
		if l.Wanted("web") {
			b.Fatal("wanted")
		}
	}
}
