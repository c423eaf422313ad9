// Package logs keeps the output of the Machines of a host, and the platform's lines about them.
//
// A Machine writes to a FIFO that both its sandbox and the Store have opened for reading and writing.
// So the Machine never gets SIGPIPE and loses nothing while the daemon is down: it blocks when the
// FIFO is full, and continues when the daemon is back. The Store copies line by line into files of
// its own, which it rotates by size.
//
// A line is readable once it is complete; a line longer than MaxLine becomes several. An incomplete
// line is on disk too, marked as such, and is completed after a restart. A kill of the daemon at
// any moment neither loses nor duplicates output, because every chunk takes the four steps of the
// type note. A Store with a keeper even has the output of a Machine that ended while there was no
// daemon: the keeper holds the FIFO open, and Open continues with every FIFO that it holds. Nothing
// is synced: a loss of power loses the last seconds, and a torn line is cut off. On a full disk,
// output is discarded, and a line reports how much. If an App exceeds its rate for long, its
// Machines are slowed down, but lose nothing.
//
// Every line of an App has a time of its own, in nanoseconds, which grows even if the clock does not.
// Tokens contain that time, so they stay valid across restarts and rotation.
//
// Every running Machine has a goroutine, but no buffer while it is silent. Lines of one App are
// written one chunk at a time, under the App's lock; readers read the files without a lock. All
// methods may be called from many goroutines.
//
// The log of a destroyed Machine is retired: it is only on disk, and can be read until Forget removes
// it.
//
// A Store does not know which Machines an App has, and does not forward logs to other hosts.
package logs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// The defaults of Options.
const (
	DefaultMaxBytes = 8 << 20 // of one file
	DefaultMaxFiles = 4       // of one Machine
	DefaultMaxRate  = 8 << 20 // bytes of an App in a second
)

// burstSeconds is how many seconds' worth of output an App may write at once after a silence.
const burstSeconds = 8

// MaxLine is the length of the longest line, in bytes. Longer lines are split.
const MaxLine = 64 << 10

var (
	// errClosed is the error of a Store that is not open.
	errClosed = errors.New("log store is closed")
	// errGone is the error of a log that was removed or retired after it was found.
	errGone = errors.New("the log is removed")
)

// Options of a Store.
type Options struct {
	Dir    string
	Region hangar.Region
	// MaxBytes is the size at which a file is rotated; 0: DefaultMaxBytes. A file
	// exceeds it by less than a chunk of output.
	MaxBytes int64
	// MaxFiles is how many files a Machine keeps; 0: DefaultMaxFiles.
	MaxFiles int
	// MaxRate is how many bytes of output of one App's Machines are read in a second, on average; 0:
	// DefaultMaxRate. A Machine that writes more waits, as it does for a full pipe.
	MaxRate int
	// Keeper holds the FIFOs while this process is down. It must be open while the Store is. Nil:
	// unread output is lost when a Machine ends while there is no daemon.
	Keeper *keeper.Client
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Store keeps the logs of a host. New makes one, Open makes it usable.
type Store struct {
	dir      string
	region   hangar.Region
	maxBytes int64
	maxFiles int
	maxRate  int
	keeper   *keeper.Client // nil: none
	log      *slog.Logger
	now      func() time.Time

	tap *tap // open while the Store is

	mu       sync.Mutex // taken before an appLog's
	closed   chan struct{}
	apps     map[hangar.AppID]*appLog
	machines map[hangar.MachineID]*machineLog
}

// New returns a Store that Open makes usable.
func New(o Options) *Store {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxFiles <= 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.MaxRate <= 0 {
		o.MaxRate = DefaultMaxRate
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{
		dir: o.Dir, region: o.Region, maxBytes: o.MaxBytes, maxFiles: o.MaxFiles, maxRate: o.MaxRate,
		keeper: o.Keeper, log: o.Log, now: o.Now,
	}
}

// Open finds the existing logs, repairs interrupted writes and captures the FIFOs that the keeper
// holds. It logs an unreadable log and does not change it.
func (s *Store) Open(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	s.inherit(ctx)
	return nil
}

func (s *Store) load(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := openTap()
	if err != nil {
		return err
	}
	s.tap = t
	s.closed = make(chan struct{})
	s.apps = map[hangar.AppID]*appLog{}
	s.machines = map[hangar.MachineID]*machineLog{}
	apps, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := ctx.Err(); err != nil {
			return err
		}
		machines, err := os.ReadDir(filepath.Join(s.dir, app.Name()))
		if err != nil {
			s.log.ErrorContext(ctx, "logs of an app cannot be read", slog.String("app", app.Name()), slog.Any("error", err))
			continue
		}
		for _, machine := range machines {
			ref := hangar.MachineRef{AppID: hangar.AppID(app.Name()), ID: hangar.MachineID(machine.Name())}
			switch {
			case machine.Name() == retiredDir:
				err = s.loadRetired(s.app(ref.AppID))
			case strings.Contains(machine.Name(), retiredMark):
				err = s.regroup(s.app(ref.AppID), machine.Name())
			default:
				_, err = s.machine(ref)
			}
			if err != nil {
				s.log.ErrorContext(ctx, "log of a machine cannot be read", slog.String("app", app.Name()),
					slog.String("machine", machine.Name()), slog.Any("error", err))
			}
		}
	}
	return nil
}

// Close ends captures and followers, after it has copied the bytes in the FIFOs. It does not wait for
// Machines; their later output stays in their FIFOs.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed == nil || isClosed(s.closed) {
		s.mu.Unlock()
		return nil
	}
	close(s.closed)
	machines := slices.Collect(maps.Values(s.machines))
	s.mu.Unlock()
	var errs []error
	for _, m := range machines {
		errs = append(errs, m.endCapture(false), m.closeFile())
	}
	return errors.Join(append(errs, s.tap.close())...)
}

// Append adds a line of the platform; a message of several lines becomes as many. The level is
// "info", "warn" or "error". An error is logged.
func (s *Store) Append(ref hangar.MachineRef, provider hangar.LogProvider, level, message string) {
	err := errGone
	for errors.Is(err, errGone) {
		var m *machineLog
		s.mu.Lock()
		m, err = s.machine(ref)
		s.mu.Unlock()
		if err == nil {
			err = m.appendMessage(provider, level, message)
		}
	}
	if err != nil {
		s.log.Warn("log line of a machine is lost", slog.String("app", string(ref.AppID)),
			slog.String("machine", string(ref.ID)), slog.String("message", message), slog.Any("error", err))
	}
}

// Remove ends the capture of a Machine and removes its log, except for retired parts. It may be
// repeated, and does nothing for an unknown Machine.
func (s *Store) Remove(id hangar.MachineID) error {
	s.mu.Lock()
	m, ok := s.machines[id]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	if err := errors.Join(m.endCapture(true), m.closeFile()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if err := os.RemoveAll(m.dir); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(m.dir)) // fails as intended while the App has other Machines
	s.forgetLocked(m)
	return nil
}

// forgetLocked forgets a log without files. The caller holds s.mu and the App's mu.
func (s *Store) forgetLocked(m *machineLog) {
	m.gone = true
	delete(s.machines, m.id)
	delete(m.app.machines, m.id)
	s.dropAppLocked(m.app)
}

// machine returns the log of ref, and makes it if necessary. The caller holds s.mu.
func (s *Store) machine(ref hangar.MachineRef) (*machineLog, error) {
	if s.closed == nil || isClosed(s.closed) {
		return nil, errClosed
	}
	if m, ok := s.machines[ref.ID]; ok {
		if m.app.id != ref.AppID {
			return nil, fmt.Errorf("log of machine %s is app %s's, not %s's", ref.ID, m.app.id, ref.AppID)
		}
		return m, nil
	}
	for _, name := range []string{string(ref.AppID), string(ref.ID)} {
		if name == "" || strings.ContainsAny(name, "/\x00"+retiredMark) {
			return nil, fmt.Errorf("no log can be named %q", name)
		}
	}
	a := s.app(ref.AppID)
	m := &machineLog{store: s, app: a, id: ref.ID, dir: filepath.Join(s.dir, string(ref.AppID), string(ref.ID))}
	if err := m.load(); err != nil {
		s.dropApp(a)
		return nil, fmt.Errorf("read log of machine %s: %w", ref.ID, err)
	}
	s.machines[ref.ID] = m
	a.mu.Lock()
	a.machines[ref.ID] = m
	a.last = max(a.last, m.last)
	a.mu.Unlock()
	return m, nil
}

// app returns the log of an App, and makes it if necessary. The caller holds s.mu.
func (s *Store) app(id hangar.AppID) *appLog {
	a, ok := s.apps[id]
	if !ok {
		a = &appLog{
			id: id, machines: map[hangar.MachineID]*machineLog{}, changed: make(chan struct{}),
			rate: rate.NewLimiter(rate.Limit(s.maxRate), max(burstSeconds*s.maxRate, chunkSize)),
		}
		s.apps[id] = a
	}
	return a
}

// dropApp forgets an App without logs. The caller holds s.mu.
func (s *Store) dropApp(a *appLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.dropAppLocked(a)
}

// dropAppLocked is dropApp for a caller who holds a.mu, too.
func (s *Store) dropAppLocked(a *appLog) {
	if len(a.machines)+a.followers == 0 && !a.retired {
		delete(s.apps, a.id)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
