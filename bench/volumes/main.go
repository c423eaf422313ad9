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
	"path/filepath"
	"strings"

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
	skip      harness.Parts
}

// The parts that can be skipped, beside the peers.
const (
	partIO        = "io"
	partSnapshots = "snapshots"
	partFreeze    = "freeze"
)

func main() { harness.Main("volumes", run) }

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
	if o.skip, err = harness.ParseParts("skip", skip, partIO, partSnapshots, partFreeze, placeRunsc, peerKopia, peerRestic, peerQEMU); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.seconds < 1 || o.mb < 64 || o.snapshots < 1 || flag.NArg() > 0 {
		return o, errors.New("the numbers must be positive, -mb at least 64, and nothing may follow the flags")
	}
	return o, nil
}

func run(ctx context.Context) (err error) {
	o, err := parse()
	if err != nil {
		return err
	}
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()

	dir, err := os.MkdirTemp("", "hgv")
	if err != nil {
		return err
	}
	undo.Add(func() error { return os.RemoveAll(dir) })
	b := &bench{options: o, dir: dir, guest: filepath.Join(dir, "guest")}
	if err := harness.Build(ctx, b.guest, "./bench/volumes/guest"); err != nil {
		return err
	}
	if b.platform, err = startPlatform(ctx, o, b.guest, &undo); err != nil {
		return err
	}
	var r results
	if !o.skip.Has(partIO) {
		if r.places, err = b.measureIO(ctx, &undo); err != nil {
			return err
		}
	}
	if !o.skip.Has(partSnapshots) {
		if r.stores, err = b.measureSnapshots(ctx); err != nil {
			return err
		}
	}
	if !o.skip.Has(partFreeze) {
		if r.frozen, err = b.measureFreeze(ctx); err != nil {
			return err
		}
	}
	section := r.section(ctx, &b.options, b.notes)
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

// command runs a program, whose output is of interest only when it fails.
func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return nil
}
