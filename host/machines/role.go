package machines

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/durable"
)

// A Machine whose programs assume a role at AWS has an identity token for that in a file. The token
// is written before they start and before they resume, and is replaced at half of its life. The
// file roleFile, outside of the Machine, marks such a Machine for a daemon that did not boot it.

// Pauses after a failure to get a token.
const (
	minRolePause = time.Second
	maxRolePause = time.Minute
)

// roleFailures is the number of consecutive failures after which the Machine's log reports them.
// Around a restart of the daemon, failures are harmless.
const roleFailures = 4

// roles are the Machines with a token to renew.
type roles struct {
	index *index
	now   func() time.Time

	mu   sync.Mutex
	due  map[hangar.MachineID]roleDue // guarded by mu
	news chan struct{}                // buffered 1: a token may be due earlier
}

// roleDue is the time of the next renewal, the number of consecutive failures, and whether the
// Machine's log has reported them.
type roleDue struct {
	at       time.Time
	failures int
	told     bool
}

func newRoles(index *index, now func() time.Time) *roles {
	return &roles{index: index, now: now, due: make(map[hangar.MachineID]roleDue), news: make(chan struct{}, 1)}
}

func (r *roles) set(id hangar.MachineID, due roleDue) {
	r.mu.Lock()
	r.due[id] = due
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// has reports whether due still applies, because the token was not renewed since.
func (r *roles) has(id hangar.MachineID, due roleDue) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, ok := r.due[id]
	return ok && now == due
}

func (r *roles) forget(id hangar.MachineID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.due, id)
}

// next returns the Machine whose token is due first; ok is false without any.
func (r *roles) next() (id hangar.MachineID, due roleDue, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, d := range r.due {
		if !ok || d.at.Before(due.at) {
			id, due, ok = i, d, true
		}
	}
	return id, due, ok
}

// retry schedules the next attempt after a failure.
func (d roleDue) retry(now time.Time) roleDue {
	return roleDue{now.Add(min(minRolePause<<min(d.failures, 10), maxRolePause)), d.failures + 1, d.told}
}

// keep renews the tokens of Machines until ctx ends.
func (r *roles) keep(ctx context.Context) {
	for {
		id, due, ok := r.next()
		nap := maxScheduleNap
		if ok {
			nap = min(nap, due.at.Sub(r.now()))
		}
		if ok && nap <= 0 {
			r.renew(ctx, id, due)
			continue
		}
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-r.news:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// renew replaces the token of a Machine, unless it has come to rest.
func (r *roles) renew(ctx context.Context, id hangar.MachineID, due roleDue) {
	m := r.index.find(id)
	if m == nil {
		r.forget(id)
		return
	}
	m.roleMu.Lock()
	defer m.roleMu.Unlock()
	if !r.has(id, due) {
		return // the Machine has booted meanwhile
	}
	rec := m.rec.Load()
	if !rec.Machine.State.HasIdentity() {
		r.forget(id)
		return
	}
	next, err := m.putRole(ctx, rec)
	if err == nil {
		r.set(id, roleDue{at: next})
		if due.told {
			m.note("info", "There is a new identity token in %s", rolePath())
		}
		return
	}
	if ctx.Err() != nil {
		return
	}
	again := due.retry(r.now())
	if !again.told && again.failures >= roleFailures {
		m.note("warn", "Cannot renew the identity token in %s, trying on: %s", rolePath(), hangar.MessageOf(err))
		again.told = true
	}
	r.set(id, again)
}

// giveRole writes the token of a Machine that is about to run or resume. The Machine runs even
// without one. Work that was due for an earlier boot is dropped.
func (w *worker) giveRole(ctx context.Context, rec *journal.Record, processes []guest.Process) error {
	w.roleMu.Lock()
	defer w.roleMu.Unlock()
	w.store.roles.forget(w.id)
	if !guest.AssumesRole(processes) {
		return errors.Join(durable.Remove(w.path(roleFile)), durable.Remove(w.roleToken()))
	}
	if err := os.WriteFile(w.path(roleFile), nil, 0o600); err != nil {
		return err
	}
	due, err := w.putRole(ctx, rec)
	if err == nil {
		w.store.roles.set(w.id, roleDue{at: due})
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.note("warn", "Cannot get the identity token in %s, trying on: %s", rolePath(), hangar.MessageOf(err))
	w.store.roles.set(w.id, roleDue{told: true}.retry(w.store.o.Now()))
	if rec.Snapshot {
		return nil // the token from before its suspend belongs to it
	}
	return durable.Remove(w.roleToken())
}

// resumeRole adopts the token of a Machine that kept running without a daemon.
func (m *machine) resumeRole() {
	if _, err := os.Stat(m.path(roleFile)); err == nil {
		m.store.roles.set(m.id, roleDue{at: m.store.o.Now()})
	}
}

// roleToken is the file on the host, rolePath in the Machine.
func (m *machine) roleToken() string { return filepath.Join(m.layer(localDir), guest.RoleToken) }

func rolePath() string { return hangar.GuestDir.Original + "/" + guest.RoleToken }

// putRole writes a new token into the Machine, and returns when to renew it. m.roleMu is held.
// Every user of the Machine may read it, because programs drop root after their start. A crash
// loses at most a token, and the next daemon writes another.
func (m *machine) putRole(ctx context.Context, rec *journal.Record) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, m.store.limits.role)
	defer cancel()
	ref := rec.Machine.Ref()
	token, err := m.store.o.Identity.IssueIdentityToken(hangar.AsMachine(ctx, rec.Org, rec.OrgID, ref), ref,
		hangar.IdentityTokenRequest{Audience: guest.RoleAudience})
	if err != nil {
		return time.Time{}, err
	}
	// Written elsewhere and moved, so that the Machine finds all of it or none.
	made := m.layer(tokenNew)
	if err := os.WriteFile(made, []byte(token), 0o644); err != nil { //nolint:gosec // see above
		return time.Time{}, err
	}
	if err := os.Chmod(made, 0o644); err != nil { //nolint:gosec // despite our umask
		return time.Time{}, err
	}
	return renewal(token, m.store.o.Now()), os.Rename(made, m.roleToken())
}

// renewal is half of a token's remaining life from now.
func renewal(token string, now time.Time) time.Time {
	left := hangar.IdentityTokenLifetime
	var claims struct {
		Expiry float64 `json:"exp"`
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(raw, &claims) == nil && claims.Expiry > 0 {
			left = time.UnixMicro(int64(claims.Expiry * 1e6)).Sub(now)
		}
	}
	return now.Add(max(left/2, minRolePause))
}
