package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
)

// The places where the guest writes and reads.
const (
	placeHost      = "file of the host"
	placeRunsc     = "runsc"
	placeCrypt     = "cryptsetup on the host"
	placeOutside   = "encrypted volume, from the host"
	placeEncrypted = "Machine, encrypted volume"
	placePlain     = "Machine, plain volume"
)

// ops are what is measured in each place, in that order.
func ops() []string { return []string{"write", "read", "random-write", "random-read"} }

// place is somewhere to write and read.
type place struct {
	name string
	// run executes the guest there, with the directory put after the first argument.
	run func(ctx context.Context, op string, args ...string) (string, error)
	// forget makes that what was written has to be read from the disk again.
	forget  func(ctx context.Context) error
	samples map[string][]float64 // by op: bytes or operations per second
}

// dropCaches makes the host forget what it has read. Sync first: it keeps what is not on
// the disk yet.
func dropCaches(context.Context) error {
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)
}

// onHost runs the guest on this host.
func (b *bench) onHost(dir string) func(context.Context, string, ...string) (string, error) {
	return func(ctx context.Context, op string, args ...string) (string, error) {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, b.guest, append([]string{op, dir}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("guest %s %s: %w: %s", op, dir, err, stderr.String())
		}
		return stdout.String(), nil
	}
}

// places prepares all that are available on this server.
func (b *bench) places(ctx context.Context, undo *harness.Undo) ([]*place, error) {
	hostDir := filepath.Join(b.dir, "host")
	if err := os.Mkdir(hostDir, 0o700); err != nil {
		return nil, err
	}
	all := []*place{{name: placeHost, run: b.onHost(hostDir), forget: dropCaches}}
	if !b.skip.Has(placeRunsc) {
		p, err := b.startRunsc(ctx, undo)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if p, err := b.openCrypt(ctx, undo); err != nil {
		b.note("no dm-crypt on this server: %s", firstLine(err))
	} else {
		all = append(all, p)
	}
	for _, encrypted := range []bool{true, false} {
		m, err := b.platform.machine(ctx, hangar.VolumeCreate{SizeGB: b.mb>>10 + 2, Encrypted: &encrypted})
		if err != nil {
			return nil, err
		}
		undo.Add(func() error { return m.remove(context.WithoutCancel(ctx)) })
		p := &place{name: placePlain, run: func(ctx context.Context, op string, args ...string) (string, error) {
			return m.run(ctx, append([]string{op, onVolume}, args...)...)
		}, forget: m.forget}
		if encrypted {
			p.name = placeEncrypted
			if dir := mountOf(m.volume); dir != "" {
				outside := &place{name: placeOutside, forget: m.forget}
				outside.run = func(ctx context.Context, op string, args ...string) (string, error) {
					return b.onHost(mountOf(m.volume))(ctx, op, args...)
				}
				all = append(all, outside)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// forget restarts the Machine, so that neither its kernel nor the process behind the volume
// remembers anything.
func (m *machine) forget(ctx context.Context) error {
	return errors.Join(m.stop(ctx), dropCaches(ctx), m.start(ctx))
}

func firstLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return lines[len(lines)-1]
}

// measureIO lets all places take turns.
func (b *bench) measureIO(ctx context.Context, undo *harness.Undo) ([]*place, error) {
	all, err := b.places(ctx, undo)
	if err != nil {
		return nil, err
	}
	for round := range b.rounds {
		for i := range all {
			p := all[(i+round)%len(all)]
			if err := b.measurePlace(ctx, p); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "reading and writing: round %d of %d\n", round+1, b.rounds)
	}
	return all, nil
}

func (b *bench) measurePlace(ctx context.Context, p *place) error {
	if p.samples == nil {
		p.samples = make(map[string][]float64)
	}
	for _, op := range ops() {
		args := []string{strconv.Itoa(b.seconds)}
		switch op {
		case "write":
			args = []string{strconv.Itoa(b.mb / 2)}
		case "read":
			args = nil
		}
		if strings.HasSuffix(op, "read") {
			if err := p.forget(ctx); err != nil {
				return err
			}
		}
		if _, err := harness.Quiet(ctx); err != nil {
			return err
		}
		said, err := p.run(ctx, op, args...)
		if err != nil {
			return err
		}
		numbers, err := numbers(said)
		if err != nil {
			return err
		}
		p.samples[op] = append(p.samples[op], numbers[0])
	}
	return nil
}

// numbers are what the guest printed, at least one.
func numbers(said string) (all []float64, err error) {
	for word := range strings.FieldsSeq(said) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, fmt.Errorf("the guest printed %q", said)
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		return nil, errors.New("the guest printed nothing")
	}
	return all, nil
}
