package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// answer writes the result of a command for the driver and returns the status to
// exit with.
func answer(r bundle.Result, err error) subcommands.ExitStatus {
	if err != nil {
		r.Error = err.Error()
		r.Unusable = errors.Is(err, bundle.ErrDamaged)
	}
	out := os.NewFile(bundle.ResultFD, "result")
	if jsonErr := json.NewEncoder(out).Encode(r); jsonErr != nil || err != nil {
		return subcommands.ExitFailure
	}
	return subcommands.ExitSuccess
}

// keepResult stops children from inheriting the descriptor of the result: the
// driver reads it to its end.
func keepResult() { unix.CloseOnExec(bundle.ResultFD) }

// launch are the flags of commands that make a sandbox from a bundle.
type launch struct {
	bundle  string
	console string
	spec    *specs.Spec
}

func (l *launch) SetFlags(f *flag.FlagSet) {
	f.StringVar(&l.bundle, "bundle", "", "directory with config.json")
	f.StringVar(&l.console, "console-socket", "", "socket that receives the master of the terminal")
}

// FetchSpec reads the configuration in the bundle.
func (l *launch) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	if l.spec == nil {
		spec, err := specutils.ReadSpec(l.bundle, conf)
		if err != nil {
			return "", nil, err
		}
		l.spec = spec
	}
	return f.Arg(0), l.spec, nil
}

func (l *launch) create(conf *config.Config, id string) (*container.Container, error) {
	keepResult()
	if err := joinCgroup(conf, l.spec); err != nil {
		return nil, err
	}
	// Children must not inherit descriptors that are open so far. Package container does the same,
	// but only once in a process.
	if err := sandbox.SetCloExeOnAllFDs(); err != nil {
		return nil, err
	}
	if err := openExitFile(filepath.Join(l.bundle, bundle.ExitFile)); err != nil {
		return nil, err
	}
	return container.New(conf, container.Args{ID: id, Spec: l.spec, BundleDir: l.bundle, ConsoleSocket: l.console})
}

// prepare creates the sandbox, of which nothing runs yet, and prepares the record of it for a driver that is started
// later.
func (l *launch) prepare(conf *config.Config, id string) (*container.Container, bundle.Result, error) {
	c, err := l.create(conf, id)
	if err != nil {
		return nil, bundle.Result{}, fmt.Errorf("create sandbox: %w", err)
	}
	r := bundle.Result{SentryPID: c.SandboxPid(), GoferPID: c.GoferPid.Load(), ControlSocket: c.Sandbox.ControlSocketPath}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		r.HostBoot = strings.TrimSpace(string(boot))
		err = bundle.PrepareResult(l.bundle, r)
	}
	if err != nil {
		_ = c.Destroy()
		return nil, r, fmt.Errorf("record the sandbox: %w", err)
	}
	return c, r, nil
}

// launched records and reports that the guest runs. It does not end what runs because of an error: the guest's memory
// may exist nowhere else.
func (l *launch) launched(r bundle.Result, err error) subcommands.ExitStatus {
	if err = errors.Join(err, bundle.RecordResult(l.bundle)); err != nil {
		r.Incomplete = err.Error()
	}
	return answer(r, nil)
}

// startCommand boots a sandbox and returns when its main process runs.
type startCommand struct{ launch }

// Name implements subcommands.Command.
func (*startCommand) Name() string { return "start" }

// Synopsis implements subcommands.Command.
func (*startCommand) Synopsis() string { return "boot a sandbox" }

// Usage implements subcommands.Command.
func (*startCommand) Usage() string { return "start -bundle DIR ID\n" }

// Execute implements subcommands.Command.
func (s *startCommand) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	conf := args[0].(*config.Config)
	c, r, err := s.prepare(conf, f.Arg(0))
	if err != nil {
		return answer(r, err)
	}
	if err := c.Start(conf); err != nil {
		_ = c.Destroy()
		return answer(r, fmt.Errorf("start sandbox: %w", err))
	}
	return s.launched(r, nil)
}

// suspendCommand writes the memory of a sandbox to disk and ends it.
type suspendCommand struct {
	dir    string
	lock   string
	direct bool
	origin bundle.Origin
}

// Name implements subcommands.Command.
func (*suspendCommand) Name() string { return "suspend" }

// Synopsis implements subcommands.Command.
func (*suspendCommand) Synopsis() string { return "write a snapshot and end the sandbox" }

// Usage implements subcommands.Command.
func (*suspendCommand) Usage() string { return "suspend -dir DIR ID\n" }

// SetFlags implements subcommands.Command.
func (s *suspendCommand) SetFlags(f *flag.FlagSet) {
	f.StringVar(&s.dir, "dir", "", "directory of the snapshot; must not exist")
	f.StringVar(&s.lock, "lock", "", "file to hold locked meanwhile")
	f.BoolVar(&s.direct, "direct", false, "write around the page cache")
	f.StringVar(&s.origin.CPU, "origin-cpu", "", "digest to record")
	f.StringVar(&s.origin.Spec, "origin-spec", "", "digest to record")
}

// FetchSpec implements util.SubCommand: the snapshot needs no annotation of the
// spec.
func (*suspendCommand) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

// Execute implements subcommands.Command.
func (s *suspendCommand) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	return answer(bundle.Result{}, s.suspend(args[0].(*config.Config), f.Arg(0)))
}

func (s *suspendCommand) suspend(conf *config.Config, id string) error {
	keepResult()
	if err := lockFile(s.lock); err != nil {
		return err
	}
	c, err := load(conf, id)
	if err != nil {
		return fmt.Errorf("load sandbox: %w", err)
	}
	tmp := s.dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	opts := sandbox.CheckpointOpts{Compression: statefile.CompressionLevelNone, Direct: s.direct}
	if err := c.Checkpoint(conf, tmp, opts); err != nil {
		_ = os.RemoveAll(tmp)
		return fmt.Errorf("write snapshot: %w", err)
	}
	s.origin.Engine = gvisorVersion
	if err := bundle.Seal(tmp, s.dir, s.origin); err != nil {
		_ = os.RemoveAll(tmp)
		return fmt.Errorf("seal snapshot: %w", err)
	}
	return nil
}

// lockFile holds path locked until the process ends, so that a driver that is started later knows
// when the snapshot is complete or has failed.
func lockFile(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}

func load(conf *config.Config, id string) (*container.Container, error) {
	return container.Load(conf.RootDir, container.FullID{SandboxID: id, ContainerID: id},
		container.LoadOpts{Exact: true, SkipCheck: true})
}

// resumeCommand boots a sandbox from a snapshot.
type resumeCommand struct {
	launch
	dir        string
	direct     bool
	background bool
}

// Name implements subcommands.Command.
func (*resumeCommand) Name() string { return "resume" }

// Synopsis implements subcommands.Command.
func (*resumeCommand) Synopsis() string { return "boot a sandbox from a snapshot" }

// Usage implements subcommands.Command.
func (*resumeCommand) Usage() string { return "resume -bundle DIR -dir DIR ID\n" }

// SetFlags implements subcommands.Command.
func (r *resumeCommand) SetFlags(f *flag.FlagSet) {
	r.launch.SetFlags(f)
	f.StringVar(&r.dir, "dir", "", "directory of the snapshot")
	f.BoolVar(&r.direct, "direct", false, "read around the page cache")
	f.BoolVar(&r.background, "background", false, "read memory while the guest runs already")
}

// Execute implements subcommands.Command. The snapshot is verified while the
// sandbox boots, and before any of it is used.
func (r *resumeCommand) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	conf := args[0].(*config.Config)
	meta, err := bundle.ReadMeta(r.dir)
	if err != nil {
		return answer(bundle.Result{NotBegun: true}, err)
	}
	verified := make(chan error, 1)
	go func() { verified <- bundle.Verify(r.dir, meta) }()
	c, made, err := r.prepare(conf, f.Arg(0))
	if err != nil {
		return answer(bundle.Result{NotBegun: true}, err)
	}
	if err := <-verified; err != nil {
		_ = c.Destroy()
		return answer(bundle.Result{NotBegun: true}, err)
	}
	err = c.Restore(conf, r.dir, r.direct, r.background, nil)
	if err != nil && !c.Sandbox.Restored {
		_ = c.Destroy()
		return answer(bundle.Result{NotBegun: true}, notRestored(err))
	}
	return r.launched(made, err)
}

// refused is how runsc begins the text of what the sentry answers when it was given the snapshot. Before that, nothing
// has used the snapshot.
const refused = "restoring container "

// notRestored turns an error of a resume whose guest does not run into ErrDamaged if the snapshot cannot be resumed any
// more. Its files are as they were sealed, so the sentry restores them later, unless it has refused them for another
// reason than that the host lacks something, or has ended meanwhile, when the guest may have run. What cannot be read of
// them the next resume finds.
func notRestored(err error) error {
	text := err.Error()
	lacks := slices.ContainsFunc([]unix.Errno{unix.ENOMEM, unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.EAGAIN},
		func(e unix.Errno) bool { // in the words of either
			return strings.Contains(text, e.Error()) || strings.Contains(text, linuxerr.ErrorFromUnix(e).Error())
		})
	if strings.HasPrefix(text, refused) && !lacks {
		return fmt.Errorf("%w: %w", bundle.ErrDamaged, err)
	}
	return err
}
