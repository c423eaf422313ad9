package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// World is the pretend host. Its state is on disk after every change, so that another World on the
// same directory continues it.
type World struct {
	dir string

	mu      sync.Mutex                         // guards the files and what follows
	dead    bool                               // see Die
	busy    map[hangar.MachineID]string        // the exclusive operation of each Machine
	changed map[hangar.MachineID]chan struct{} // closed when the sandbox changes; present while there are waiters
	served  map[hangar.MachineID]sftp.Handlers // files by SFTP
}

// NewWorld returns the World in dir, which is created on first use.
func NewWorld(dir string) *World {
	return &World{dir: dir, busy: make(map[hangar.MachineID]string), changed: make(map[hangar.MachineID]chan struct{}), served: make(map[hangar.MachineID]sftp.Handlers)}
}

const (
	sandboxSuffix = ".sandbox"
	misuseFile    = "misuse.log"
)

// Misuses returns every violation of the contract since the World began, oldest first. A correct
// agent causes none.
func (w *World) Misuses() ([]string, error) {
	b, err := os.ReadFile(filepath.Join(w.dir, misuseFile))
	if errors.Is(err, os.ErrNotExist) || err == nil && len(b) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), nil
}

// Running returns the Machines whose main process runs, sorted.
func (w *World) Running() ([]hangar.MachineID, error) {
	ids, err := w.list()
	if err != nil {
		return nil, err
	}
	var running []hangar.MachineID
	for _, id := range ids {
		s, err := w.load(id)
		if errors.Is(err, driver.ErrNotFound) {
			continue // destroyed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if s.Ended == nil {
			running = append(running, id)
		}
	}
	return running, nil
}

// Boot returns the name of a Machine's boot, as the command boot prints it inside; "" when the
// Machine has no sandbox.
func (w *World) Boot(id hangar.MachineID) string {
	s, err := w.load(id)
	if err != nil {
		return ""
	}
	return s.Boot
}

// Crash ends the main process of a Machine from outside, like a fault of the host. It returns
// driver.ErrNotFound when none runs.
func (w *World) Crash(id hangar.MachineID, exit driver.Exit) error {
	s, err := w.load(id)
	if err != nil {
		return err
	}
	return w.change(s.handle(), func(s *sandbox) error {
		if exit.At.IsZero() {
			exit.At = now()
		}
		s.Ended = &exit
		return nil
	})
}

// Vanish removes every sandbox, as a loss of power does.
func (w *World) Vanish() error {
	ids, err := w.list()
	for _, id := range ids {
		err = errors.Join(err, w.remove(id))
	}
	return err
}

// ErrDied is returned by all calls after Die.
var ErrDied = errors.New("the daemon has died")

// Die simulates the death of the daemon that uses this World: from now on no call through it has an
// effect. The Machines continue in a new World on the same directory.
func (w *World) Die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

func (w *World) alive() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.aliveLocked()
}

func (w *World) aliveLocked() error {
	if w.dead {
		return ErrDied
	}
	return nil
}

func (w *World) misused(id hangar.MachineID, format string, args ...any) error {
	what := strings.ReplaceAll(fmt.Sprintf("%s: "+format, append([]any{id}, args...)...), "\n", " ")
	if err := w.alive(); err != nil {
		return err
	}
	err := fmt.Errorf("%w: %s", ErrMisuse, what)
	if merr := os.MkdirAll(w.dir, 0o700); merr != nil {
		return errors.Join(err, merr)
	}
	f, ferr := os.OpenFile(filepath.Join(w.dir, misuseFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	_, werr := f.WriteString(what + "\n")
	return errors.Join(err, werr, f.Close())
}

// begin starts an operation that excludes all others of its kind for the Machine.
func (w *World) begin(what string, id hangar.MachineID) (end func(), err error) {
	w.mu.Lock()
	other, clash := w.busy[id]
	if !clash {
		w.busy[id] = what
	}
	w.mu.Unlock()
	if clash {
		return nil, w.misused(id, "%s during %s", what, other)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, id)
	}, nil
}

func (w *World) file(id hangar.MachineID) string {
	return filepath.Join(w.dir, string(id)+sandboxSuffix)
}

func (w *World) load(id hangar.MachineID) (*sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loadLocked(id)
}

// loadLocked reads a sandbox as it is now, with the planned exit if its time has come.
func (w *World) loadLocked(id hangar.MachineID) (*sandbox, error) {
	b, err := os.ReadFile(w.file(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("sandbox %s: %w", id, driver.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	s := new(sandbox)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", id, err)
	}
	s.settle(now())
	return s, nil
}

func (w *World) saveLocked(s *sandbox) error {
	if err := w.aliveLocked(); err != nil {
		return err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := writeFile(w.file(s.Spec.ID), b); err != nil {
		return err
	}
	w.notifyLocked(s.Spec.ID)
	return nil
}

func (w *World) notifyLocked(id hangar.MachineID) {
	if ch, ok := w.changed[id]; ok {
		close(ch)
		delete(w.changed, id)
	}
}

func (w *World) add(s *sandbox) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	return w.saveLocked(s)
}

// remove is idempotent.
func (w *World) remove(id hangar.MachineID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.aliveLocked(); err != nil {
		return err
	}
	if err := os.Remove(w.file(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	w.notifyLocked(id)
	return nil
}

// find returns the sandbox that a handle stands for, ended or not.
func (w *World) find(h handle) (*sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.findLocked(h)
}

func (w *World) findLocked(h handle) (*sandbox, error) {
	s, err := w.loadLocked(h.ID)
	if err != nil {
		return nil, err
	}
	if s.Incarnation != h.Boot {
		return nil, fmt.Errorf("sandbox %s, earlier boot: %w", h.ID, driver.ErrNotFound)
	}
	return s, nil
}

func (w *World) findRunning(h handle) (*sandbox, error) {
	s, err := w.find(h)
	if err == nil && s.Ended != nil {
		return nil, fmt.Errorf("sandbox %s has ended: %w", h.ID, driver.ErrNotFound)
	}
	return s, err
}

// change alters a running sandbox.
func (w *World) change(h handle, fn func(s *sandbox) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.findLocked(h)
	if err != nil {
		return err
	}
	if s.Ended != nil {
		return fmt.Errorf("sandbox %s has ended: %w", h.ID, driver.ErrNotFound)
	}
	if err := fn(s); err != nil {
		return err
	}
	s.settle(now())
	return w.saveLocked(s)
}

// wait returns when the sandbox has ended.
func (w *World) wait(ctx context.Context, h handle) (driver.Exit, error) {
	for {
		w.mu.Lock()
		s, err := w.findLocked(h)
		if err != nil || s.Ended != nil {
			w.mu.Unlock()
			if err != nil {
				return driver.Exit{}, err
			}
			return *s.Ended, nil
		}
		changed, ok := w.changed[h.ID]
		if !ok {
			changed = make(chan struct{})
			w.changed[h.ID] = changed
		}
		w.mu.Unlock()
		if err := s.await(ctx, changed); err != nil {
			return driver.Exit{}, err
		}
	}
}

// await returns when the planned exit is due or something changed.
func (s *sandbox) await(ctx context.Context, changed <-chan struct{}) error {
	var due <-chan time.Time
	if s.Exit != nil {
		t := time.NewTimer(max(0, s.Exit.At.Sub(now())))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-changed:
		return nil
	case <-due:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *World) list() ([]hangar.MachineID, error) {
	entries, err := os.ReadDir(w.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []hangar.MachineID
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), sandboxSuffix); ok {
			ids = append(ids, hangar.MachineID(id))
		}
	}
	return ids, nil
}

// writeFile replaces a file in one step. It does not flush: a World outlives the death of a process,
// not of the host.
func writeFile(path string, b []byte) error {
	fresh := path + ".new"
	if err := os.WriteFile(fresh, b, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// now is the wall clock: times in the World are compared across processes.
func now() time.Time { return time.Now().UTC().Round(0) }
