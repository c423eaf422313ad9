package control

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Logs implements hangar.LogService over the hosts of an App.
//
// Lines of one host are in their order. Between hosts they are ordered by time
// within a page, and as they arrive while following.
type Logs struct {
	store        state.Store
	tenants      *tenants.Directory
	hosts        *hosts
	reservations *reservations
	edge         hangar.EdgeLog // nil: there is none
	log          *slog.Logger
}

var _ hangar.LogService = (*Logs)(nil)

// watchPause is the pause before a broken watch of the state is resumed.
const watchPause = time.Second

// logToken continues the log of an App: one token of each host.
type logToken map[hangar.HostID]string

func parseLogToken(text string) (logToken, error) {
	token := logToken{}
	if text == "" {
		return token, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(b, &token)
	}
	if err != nil || token == nil {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid next_token: use the one that the last answer had")
	}
	return token, nil
}

func (t logToken) String() string {
	if len(t) == 0 {
		return ""
	}
	b, err := json.Marshal(t) // a map of strings always encodes, and with sorted keys
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// hostLog is the part of a query that one host answers.
type hostLog struct {
	host  hangar.HostID
	agent hangar.LogAgent
	away  error // why there is no agent
	query hangar.LogQuery
}

// split makes the queries of hosts. Each host may return its share of the lines, so that a page
// holds all returned lines and the next one continues without a gap. At least one can be reached.
func (l *Logs) split(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (tenants.AppRecord, []hostLog, logToken, error) {
	rec, _, err := l.tenants.AppFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app, ID: q.Instance})
	if err != nil {
		return tenants.AppRecord{}, nil, nil, err
	}
	token, err := parseLogToken(q.Token)
	if err != nil {
		return rec, nil, nil, err
	}
	ids, err := l.logHosts(ctx, rec, q)
	if err != nil {
		return rec, nil, nil, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = hangar.DefaultLogLimit
	}
	logs := make([]hostLog, len(ids))
	for i, id := range ids {
		logs[i] = hostLog{host: id, query: q}
		logs[i].query.Limit, logs[i].query.Token = max(1, limit/len(ids)), token[id]
		logs[i].agent, logs[i].away = l.hosts.agent(id)
	}
	return rec, logs, token, noneReached(logs)
}

// logHosts returns the hosts that may have lines of the App. Only the hosts know about its
// destroyed Machines.
func (l *Logs) logHosts(ctx context.Context, app tenants.AppRecord, q hangar.LogQuery) ([]hangar.HostID, error) {
	if q.Instance != "" {
		r, err := l.reservations.of(ctx, app.Ref(q.Instance))
		return []hangar.HostID{r.Host}, err
	}
	reserved, err := l.reservations.byHost(ctx, app.ID)
	if err != nil {
		return nil, err
	}
	var ids []hangar.HostID
	for _, r := range reserved {
		ids = append(ids, r.host)
	}
	for _, h := range l.hosts.agents.Known() {
		if q.Region == "" || q.Region == h.Region {
			ids = append(ids, h.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// noneReached returns why the first host is away if all are.
func noneReached(logs []hostLog) error {
	if len(logs) == 0 || slices.ContainsFunc(logs, func(part hostLog) bool { return part.away == nil }) {
		return nil
	}
	return logs[0].away
}

// Logs implements hangar.LogService.
func (l *Logs) Logs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (hangar.LogPage, error) {
	rec, logs, token, err := l.split(ctx, app, q)
	if err != nil {
		return hangar.LogPage{}, err
	}
	if q.Edge {
		return hangar.LogPage{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid edge: what the edge does is not stored; follow the log to see it")
	}
	pages := make([]hangar.LogPage, len(logs))
	group, bounded := errgroup.WithContext(ctx)
	for i := range logs {
		group.Go(func() (err error) {
			part := &logs[i]
			if part.away == nil {
				pages[i], err = part.agent.Logs(bounded, rec.ID, part.query)
			}
			if unreachable(err) {
				l.log.Warn("logs of a host left out", keyApp, app, keyHost, part.host, keyError, err)
				part.away, err = err, nil
			}
			if part.away != nil {
				pages[i] = hangar.LogPage{Next: part.query.Token}
			}
			return err
		})
	}
	if err := cmp.Or(group.Wait(), noneReached(logs)); err != nil {
		return hangar.LogPage{}, err
	}
	page := hangar.LogPage{Entries: []hangar.LogEntry{}}
	for i, part := range logs {
		page.Entries = append(page.Entries, pages[i].Entries...)
		if next := pages[i].Next; next != "" {
			token[part.host] = next
		}
	}
	if len(logs) > 1 {
		slices.SortStableFunc(page.Entries, func(a, b hangar.LogEntry) int { return a.Time.Compare(b.Time) })
	}
	page.Next = token.String()
	return page, nil
}

// FollowLogs implements hangar.LogService. It ends with the first error of a host, or when the
// followed App or Machine is destroyed. Where there are several hosts, one that cannot be reached is left out
// until it can.
func (l *Logs) FollowLogs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		if q.Edge {
			l.followEdge(ctx, app, q, yield)
			return
		}
		rec, logs, _, err := l.split(ctx, app, q)
		if err != nil {
			yield(hangar.LogEntry{}, err)
			return
		}
		l.whileThere(ctx, rec, q.Instance, yield, func(ctx context.Context, yield func(hangar.LogEntry, error) bool) {
			if len(logs) == 1 {
				logs[0].agent.FollowLogs(ctx, rec.ID, logs[0].query)(yield)
				return
			}
			l.merge(ctx, rec.ID, logs, yield)
		})
	}
}

// whileThere yields the lines of follow until the App, or the Machine if one is named, is
// destroyed. Then it yields an error, CodeNotFound.
func (l *Logs) whileThere(
	ctx context.Context, app tenants.AppRecord, machine hangar.MachineID, yield func(hangar.LogEntry, error) bool,
	follow func(context.Context, func(hangar.LogEntry, error) bool),
) {
	key, missing := state.AppKey(app.Name), hangar.AppNotFound()
	if machine != "" {
		key, missing = state.ReservationKey(app.Ref(machine)), tenants.MachineNotFound(machine)
	}
	ctx, end := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		err := l.awaitRemoval(ctx, key, app.ID)
		if err == nil && machine != "" {
			if _, unknown := l.reservations.of(ctx, app.Ref(machine)); unknown == nil {
				// A destroyed Machine has a log as long as its host keeps it.
				err = l.awaitRemoval(ctx, state.AppKey(app.Name), app.ID)
			}
		}
		if err == nil {
			end(missing)
		}
	})
	defer watcher.Wait()
	defer end(nil)
	reads := true
	follow(ctx, func(e hangar.LogEntry, err error) bool {
		if err != nil && context.Cause(ctx) == missing { //nolint:errorlint // this very one
			return false
		}
		reads = yield(e, err) && err == nil
		return reads
	})
	if reads && context.Cause(ctx) == missing { //nolint:errorlint // this very one
		yield(hangar.LogEntry{}, missing)
	}
}

// awaitRemoval returns nil when the App's item at a key, or the App itself, is removed. It keeps
// waiting while the state cannot be followed.
func (l *Logs) awaitRemoval(ctx context.Context, key string, app hangar.AppID) error {
	// there reports whether the item of the key is still the App's.
	there := func(items []state.Item) bool {
		return slices.ContainsFunc(items, func(item state.Item) bool {
			if item.Key != key {
				return false
			}
			rec, err := state.Decode[tenants.AppRecord](item)
			return !strings.HasPrefix(key, state.AppsPrefix) || err != nil || rec.ID == app
		})
	}
	for {
		page, err := l.store.List(ctx, key, state.ListOptions{Limit: 1}) // the key itself sorts first
		if err == nil && !there(page.Items) {
			return nil
		}
		if err == nil {
			for batch, failure := range l.store.Watch(ctx, key, page.Revision+1) {
				if err = failure; err != nil {
					break
				}
				for _, change := range batch.Changes {
					if change.Key == key && (change.Deleted || !there([]state.Item{change.Item})) {
						return nil
					}
				}
			}
		}
		if ctx.Err() != nil || errors.Is(err, state.ErrClosed) {
			return cmp.Or(ctx.Err(), err)
		}
		_ = pause.For(ctx, watchPause)
	}
}

// followEdge yields the lines of the edge of this process about requests for the App or, if q names
// a Machine or a region, about requests that went there.
func (l *Logs) followEdge(ctx context.Context, app hangar.AppName, q hangar.LogQuery, yield func(hangar.LogEntry, error) bool) {
	rec, _, err := l.tenants.AppFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app, ID: q.Instance})
	if err != nil {
		yield(hangar.LogEntry{}, err)
		return
	}
	if l.edge == nil {
		yield(hangar.LogEntry{}, hangar.Errorf(hangar.CodeUnavailable, "", "this server has no edge"))
		return
	}
	l.whileThere(ctx, rec, q.Instance, yield, func(ctx context.Context, yield func(hangar.LogEntry, error) bool) {
		for e, err := range l.edge.FollowEdge(ctx, rec.ID) {
			elsewhere := q.Instance != "" && q.Instance != e.Instance || q.Region != "" && q.Region != e.Region
			if err == nil && elsewhere && e.Edge != nil {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	})
}

// merge yields the lines of several hosts as they arrive.
func (l *Logs) merge(ctx context.Context, app hangar.AppID, logs []hostLog, yield func(hangar.LogEntry, error) bool) {
	type line struct {
		entry hangar.LogEntry
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	lines := make(chan line)
	var followers sync.WaitGroup
	for _, part := range logs {
		followers.Go(func() {
			l.followHost(ctx, app, part, func(entry hangar.LogEntry, err error) bool {
				select {
				case lines <- line{entry, err}:
					return true
				case <-ctx.Done():
					return false
				}
			})
		})
	}
	ended := make(chan struct{})
	go func() {
		followers.Wait()
		close(ended)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for {
		select {
		case l := <-lines:
			if !yield(l.entry, l.err) || l.err != nil {
				return
			}
		case <-ended:
			return
		}
	}
}

// followHost yields the lines of a host. When it could not be reached for a while, it continues with the newest that
// it has not yielded.
func (l *Logs) followHost(ctx context.Context, app hangar.AppID, part hostLog, yield func(hangar.LogEntry, error) bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var newest time.Time // of the lines that were yielded
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		agent, err := l.hosts.agent(part.host)
		if err != nil {
			return err
		}
		known, old := newest, part.query.Limit // of the first lines, some may be known
		for entry, err := range agent.FollowLogs(ctx, app, part.query) {
			if unreachable(err) {
				part.query.Token, part.query.Limit = "", hangar.DefaultLogLimit
				return err
			}
			if old--; old >= 0 && err == nil && !entry.Time.After(known) {
				continue
			}
			if entry.Time.After(newest) {
				newest = entry.Time
			}
			if !yield(entry, err) || err != nil {
				break
			}
		}
		end()
		return nil
	}, func(err error) {
		l.log.Warn("logs of a host left out", keyHost, part.host, keyError, err)
	})
}
