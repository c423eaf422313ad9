// Command volumes measures volumes: what reading and writing on one costs a Machine, and
// how long snapshots take, keep writers waiting, and are restored.
//
// It runs a platform of its own. In the same run, in turn, the same program writes and
// reads the same way on a file of the host, in a sandbox of the unchanged runsc with a
// directory of the host, and on a volume that cryptsetup opened where the kernel can do
// that. The snapshots are compared with kopia, restic and qemu-img, which are given the
// image of the same volume at the same moments. So the ratios hold on any server.
//
// The results go into bench/RESULTS.md. What it makes on the server is removed at the end,
// also when it is interrupted; programs to compare with are kept in the user's cache
// directory. It is not a test: a goal that is missed is reported, not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured, and how often.
type options struct {
	bin       string
	out       string
	rounds    int
	seconds   int
	mb        int
	snapshots int
	skip      []string
}

// The parts that can be skipped, beside the peers.
const (
	partIO        = "io"
	partSnapshots = "snapshots"
	partFreeze    = "freeze"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/volumes:", err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	var skip string
	flag.StringVar(&o.bin, "bin", "bin", "directory of hangar, as `make build` leaves it")
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is measured")
	flag.IntVar(&o.seconds, "seconds", 3, "how long is written and read at random each time")
	flag.IntVar(&o.mb, "mb", 1024, "megabytes of content, which a snapshot has")
	flag.IntVar(&o.snapshots, "snapshots", 30, "how many snapshots are taken while a Machine writes")
	flag.StringVar(&skip, "skip", "", "what to leave out, separated by commas: io, snapshots, freeze, runsc, kopia, restic, qemu-img")
	flag.Parse()
	o.skip = strings.FieldsFunc(skip, func(r rune) bool { return r == ',' || r == ' ' })
	for _, s := range o.skip {
		if !slices.Contains([]string{partIO, partSnapshots, partFreeze, placeRunsc, peerKopia, peerRestic, peerQEMU}, s) {
			return o, fmt.Errorf("-skip %s: no such part", s)
		}
	}
	if o.rounds < 1 || o.seconds < 1 || o.mb < 64 || o.snapshots < 1 || flag.NArg() > 0 {
		return o, errors.New("the numbers must be positive, -mb at least 64, and nothing may follow the flags")
	}
	return o, nil
}

func (o *options) skips(part string) bool { return slices.Contains(o.skip, part) }

func run() (err error) {
	o, err := parse()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("running Machines needs root")
	}
	// The first signal ends the measuring and lets it clean up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()

	dir, err := os.MkdirTemp("", "hgv")
	if err != nil {
		return err
	}
	undo.Add(func() error { return os.RemoveAll(dir) })
	b := &bench{options: o, dir: dir, guest: filepath.Join(dir, "guest")}
	if err := build(ctx, b.guest, "./bench/volumes/guest"); err != nil {
		return err
	}
	if b.platform, err = startPlatform(ctx, o, b.guest, &undo); err != nil {
		return err
	}
	var r results
	if !o.skips(partIO) {
		if r.places, err = b.measureIO(ctx, &undo); err != nil {
			return err
		}
	}
	if !o.skips(partSnapshots) {
		if r.stores, err = b.measureSnapshots(ctx); err != nil {
			return err
		}
	}
	if !o.skips(partFreeze) {
		if r.frozen, err = b.measureFreeze(ctx); err != nil {
			return err
		}
	}
	section := r.section(ctx, &b.options, b.notes)
	fmt.Println(section)
	if o.out == "" {
		return nil
	}
	return publish.Section(o.out, section)
}

// bench is one measuring.
type bench struct {
	options
	dir      string // of everything but the platform, on the same disk
	guest    string // the program
	platform *platform
	notes    []string // for the reader of the results
}

func (b *bench) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// build builds a program of this module.
func build(ctx context.Context, to string, args ...string) error {
	return command(ctx, append([]string{"CGO_ENABLED=0"}, os.Environ()...), "go", append([]string{"build", "-o", to}, args...)...)
}

// command runs a program, whose output is of interest only when it fails.
func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return nil
}
