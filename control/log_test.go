package control_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func texts(entries []hangar.LogEntry) (texts []string) {
	for _, e := range entries {
		texts = append(texts, e.Message)
	}
	return texts
}

func TestLogsOfSeveralHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
	ctx := admin(t)
	p.app(t, "web")
	if page, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{}); err != nil || len(page.Entries) != 0 || page.Next != "" {
		t.Fatalf("of an app without machines: %+v, %v", page, err)
	}
	first, second := p.machine(t, "web", ""), p.machine(t, "web", "")
	if first.Host != p.hosts[0].host.ID {
		first, second = second, first
	}
	start := time.Unix(1_700_000_000, 0)
	var want []string
	for i := range 10 {
		text := fmt.Sprint("line ", i)
		p.hosts[i%2].say(start.Add(time.Duration(i)*time.Second), text)
		want = append(want, text)
	}
	page, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{})
	if err != nil || !slices.Equal(texts(page.Entries), want) {
		t.Fatalf("%v, %v; want %v", texts(page.Entries), err, want)
	}
	same, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{Token: page.Next})
	if err != nil || len(same.Entries) != 0 || same.Next != page.Next {
		t.Fatalf("nothing new: %+v, %v; want the same token", same, err)
	}
	// Lines that come in bursts are read once each, in small pages.
	for i := range 7 {
		p.hosts[0].say(start.Add(time.Minute), fmt.Sprint("a", i))
	}
	p.hosts[1].say(start.Add(time.Minute), "b")
	var got []string
	for token := page.Next; ; {
		next, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{Token: token, Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		if len(next.Entries) > 4 {
			t.Errorf("%d entries, at most 4 were asked for", len(next.Entries))
		}
		if next.Next == token {
			break
		}
		got, token = append(got, texts(next.Entries)...), next.Next
	}
	slices.Sort(got)
	if want := []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "b"}; !slices.Equal(got, want) {
		t.Errorf("in pages: %v, want %v", got, want)
	}
	// A host that is away is passed over, and continues where it was.
	p.hosts[1].say(start.Add(time.Hour), "while away")
	p.hosts[1].setDown(true)
	token := page.Next
	if away, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{Token: token}); err != nil || len(away.Entries) != 7 {
		t.Errorf("with a host away: %v, %v", texts(away.Entries), err)
	} else {
		token = away.Next
	}
	p.hosts[1].setDown(false)
	if back, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{Token: token}); err != nil || !slices.Equal(texts(back.Entries), []string{"b", "while away"}) {
		t.Errorf("with the host back: %v, %v", texts(back.Entries), err)
	}
	one, err := p.Logs().Logs(ctx, "web", hangar.LogQuery{Instance: second.ID})
	if err != nil || len(one.Entries) != 7 {
		t.Errorf("of the machine on the second host: %v, %v", texts(one.Entries), err)
	}
	_, err = p.Logs().Logs(ctx, "web", hangar.LogQuery{Instance: "00000000000000"})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	for _, bad := range []string{"?", "bnVsbA", "W10"} {
		_, err = p.Logs().Logs(ctx, "web", hangar.LogQuery{Token: bad})
		wantError(t, err, hangar.CodeInvalid, "")
	}
	p.hosts[0].setDown(true)
	_, err = p.Logs().Logs(ctx, "web", hangar.LogQuery{Instance: first.ID})
	wantError(t, err, hangar.CodeUnavailable, "")
}

func TestFollowLogs(t *testing.T) {
	for hosts := 1; hosts <= 2; hosts++ {
		t.Run(fmt.Sprint(hosts, " hosts"), func(t *testing.T) {
			all := []*fakeHost{newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc")}
			p := newPlane(t, state.NewMemory(), all[:hosts]...)
			p.app(t, "web")
			for _, h := range p.hosts {
				h.say(time.Now(), "from "+string(h.host.ID))
			}
			ctx, cancel := context.WithCancel(admin(t))
			defer cancel()
			n := 0
			for _, err := range p.Logs().FollowLogs(ctx, "web", hangar.LogQuery{}) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n == hosts {
					cancel()
				}
			}
			if n != hosts {
				t.Errorf("%d lines, want %d", n, hosts)
			}
			for range p.Logs().FollowLogs(admin(t), "web", hangar.LogQuery{}) {
				break // the followers end, too
			}
		})
	}
}

// brokenFollows are hosts of which "bbbbbbbb" is lost and comes back while its log is followed.
type brokenFollows struct {
	fleet
	times int
}

func (f *brokenFollows) Agent(id hangar.HostID) (hangar.Agent, error) {
	agent, err := f.fleet.Agent(id)
	if id == "bbbbbbbb" {
		if f.times++; f.times == 3 { // after it was asked for and followed once
			return nil, errDown
		}
		return brokenFollow{agent, f.times == 2}, err
	}
	return agent, err
}

type brokenFollow struct {
	hangar.Agent
	breaks bool
}

func (f brokenFollow) FollowLogs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	if !f.breaks {
		return f.Agent.FollowLogs(ctx, app, q)
	}
	return func(yield func(hangar.LogEntry, error) bool) {
		if yield(hangar.LogEntry{Time: time.Unix(1, 0), Message: "b1"}, nil) {
			yield(hangar.LogEntry{}, errDown)
		}
	}
}

// TestFollowLogsWhileAHostIsAway: the lines of the other hosts go on, and those of the host continue when it is back.
func TestFollowLogsWhileAHostIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
		p.app(t, "web")
		p.hosts[0].say(time.Unix(1, 0), "a1")
		p.hosts[1].say(time.Unix(1, 0), "b1")
		p.hosts[1].say(time.Unix(2, 0), "b2")
		p.agents = &brokenFollows{fleet: p.hosts}
		p.restart(t)
		ctx, cancel := context.WithTimeout(admin(t), time.Minute)
		defer cancel()
		var lines []string
		for e, err := range p.Logs().FollowLogs(ctx, "web", hangar.LogQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, e.Message)
		}
		slices.Sort(lines)
		if want := []string{"a1", "b1", "b2"}; !slices.Equal(lines, want) {
			t.Errorf("%v, want %v", lines, want)
		}
	})
}

// endless is an edge that does nothing, but is followed.
type endless struct{ followed chan struct{} }

func (l endless) FollowEdge(ctx context.Context, _ hangar.AppID) iter.Seq2[hangar.LogEntry, error] {
	return func(func(hangar.LogEntry, error) bool) {
		l.followed <- struct{}{}
		<-ctx.Done()
	}
}

// TestFollowersEndWithTheApp: a follower of an App learns when it is destroyed, also when
// another has its name by then, and receives nothing of that one.
func TestFollowersEndWithTheApp(t *testing.T) {
	for hosts := 1; hosts <= 2; hosts++ {
		all := []*fakeHost{newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc")}
		p := newPlane(t, state.NewMemory(), all[:hosts]...)
		edge := endless{make(chan struct{})}
		p.log = edge
		p.restart(t)
		p.app(t, "web")
		p.app(t, "web2")
		m := p.machine(t, "web", "")
		for _, h := range p.hosts {
			h.say(time.Now(), "a line")
		}
		ctx := admin(t)
		const others = 2
		var still, ended sync.WaitGroup
		follow := func(ctx context.Context, app hangar.AppName, q hangar.LogQuery) error {
			heard := sync.OnceFunc(still.Done)
			if q.Edge {
				go func() { <-edge.followed; heard() }()
			}
			for _, err := range p.Logs().FollowLogs(ctx, app, q) {
				if err != nil {
					return err
				}
				heard()
			}
			return nil
		}
		for i, q := range []hangar.LogQuery{{}, {Instance: m.ID}, {Edge: true}, {Edge: true, Instance: m.ID}} {
			still.Add(1)
			ended.Go(func() {
				want := hangar.ReasonAppNotFound
				if q.Instance != "" {
					want = hangar.ReasonMachineNotFound
				}
				if err := follow(ctx, "web", q); hangar.CodeOf(err) != hangar.CodeNotFound || hangar.ReasonOf(err) != want {
					t.Errorf("%d hosts, follower %d ends with %v", hosts, i, err)
				}
			})
		}
		until, cancel := context.WithCancel(ctx)
		still.Add(others)
		var rest sync.WaitGroup
		for range others {
			rest.Go(func() {
				if err := follow(until, "web2", hangar.LogQuery{}); err != nil {
					t.Errorf("the follower of an app with a longer name: %v", err)
				}
			})
		}
		still.Wait()
		if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
			t.Fatal(err)
		}
		p.app(t, "web")
		ended.Wait()
		cancel()
		rest.Wait()
	}
}

// edgeLines is an edge that does what it did again.
type edgeLines []hangar.LogEntry

func (l edgeLines) FollowEdge(context.Context, hangar.AppID) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		for _, e := range l {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func TestFollowEdge(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	m := p.machine(t, "web", "")
	follow := func(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (lines []string, err error) {
		q.Edge = true
		for e, err := range p.Logs().FollowLogs(ctx, app, q) {
			if err != nil {
				return lines, err
			}
			lines = append(lines, e.Message)
		}
		return lines, nil
	}
	_, err := follow(admin(t), "web", hangar.LogQuery{})
	wantError(t, err, hangar.CodeUnavailable, "")

	at := time.Unix(1_700_000_000, 0)
	one := hangar.EdgeRequest{Method: "GET", Path: "/1", Status: 200}.Entry(at, m.ID, "loc")
	two := hangar.EdgeRequest{Method: "GET", Path: "/2", Status: 200}.Entry(at, "11111111111111", "ams")
	none := hangar.EdgeRequest{Method: "GET", Path: "/3", Status: 503, Code: hangar.EdgeNoCandidate}.Entry(at, "", "")
	gap := hangar.LogEntry{Time: at, Message: "5 lines are left out", Provider: hangar.LogProxy}
	p.log = edgeLines{one, two, none, gap}
	p.restart(t)
	for _, test := range []struct {
		query hangar.LogQuery
		want  []string
	}{
		{hangar.LogQuery{}, []string{one.Message, two.Message, none.Message, gap.Message}},
		{hangar.LogQuery{Instance: m.ID}, []string{one.Message, gap.Message}},
		{hangar.LogQuery{Region: "ams"}, []string{two.Message, gap.Message}},
	} {
		if got, err := follow(admin(t), "web", test.query); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, %v, want %q", test.query, got, err, test.want)
		}
	}
	_, err = follow(admin(t), "nothing", hangar.LogQuery{})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = follow(t.Context(), "web", hangar.LogQuery{})
	wantError(t, err, hangar.CodeUnauthenticated, "")
	_, err = p.Logs().Logs(admin(t), "web", hangar.LogQuery{Edge: true})
	wantError(t, err, hangar.CodeInvalid, "")
}

func TestImagesOfSeveralHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
	ctx := admin(t)
	image := func(repository string, inUse bool, used int64) hangar.Image {
		return hangar.Image{Ref: hangar.ImageRef{Registry: "r", Repository: repository, Digest: "sha256:" + repository}, InUse: inUse, LastUsed: time.Unix(used, 0)}
	}
	p.hosts[0].images = []hangar.Image{image("b", false, 5), image("a", false, 1)}
	p.hosts[1].images = []hangar.Image{image("a", false, 9), image("c", true, 1)}
	list, err := p.Images().Images(ctx)
	if err != nil || len(list) != 3 || list[0].Ref.Repository != "a" || list[0].LastUsed != time.Unix(9, 0) || !list[2].InUse {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := p.Images().RemoveImage(ctx, "sha256:a"); err != nil {
		t.Fatal(err)
	}
	wantError(t, p.Images().RemoveImage(ctx, "sha256:a"), hangar.CodeNotFound, hangar.ReasonImageNotFound)
	wantError(t, p.Images().RemoveImage(ctx, "sha256:c"), hangar.CodeFailedPrecondition, "")
	p.hosts[1].setDown(true)
	if list, err := p.Images().Images(ctx); err != nil || len(list) != 1 {
		t.Errorf("with a host away: %+v, %v", list, err)
	}
	p.hosts[0].setDown(true)
	_, err = p.Images().Images(ctx)
	wantError(t, err, hangar.CodeUnavailable, "")
}
