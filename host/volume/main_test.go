package volume_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
	"github.com/hangar-platform/hangar/internal/loopdev"
	"github.com/hangar-platform/hangar/internal/mounttest"
)

// First arguments that turn the test binary into another program.
const (
	asGuard = "guard"
	asChild = "child"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		var err error
		switch os.Args[1] {
		case asGuard:
			err = volume.Guard(os.Args[2], os.Stdin, os.Stdout)
		case asChild:
			err = child(os.Args[2:])
		default:
			os.Exit(run(m))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: volumes need root")
		return 0
	}
	code := m.Run()
	if err := leftovers(); err != nil {
		fmt.Println("left behind:", err)
		return 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}

// instance is the instance of this test process and its children.
func instance() string {
	if id, ok := os.LookupEnv("HANGAR_TEST_INSTANCE"); ok {
		return id
	}
	return "t" + strconv.Itoa(os.Getpid())
}

// backendWanted is the backend under test; empty: the one that the host offers.
func backendWanted() volume.Backend { return volume.Backend(os.Getenv("HANGAR_TEST_BACKEND")) }

func runDir() string { return "/run/hangar-" + instance() }

// leftovers describes what the host still has of this instance.
func leftovers() error {
	loops, err := loopdev.List(func(string) bool { return true })
	if err != nil {
		return err
	}
	for _, l := range loops {
		if strings.Contains(l.Label, ":"+instance()+":") || strings.Contains(l.Label, "-"+instance()+"-") {
			return fmt.Errorf("loop device %s of %s", l.Path, l.Label)
		}
	}
	mapped, err := filepath.Glob("/dev/mapper/hangar-" + instance() + "-*")
	if err != nil || len(mapped) > 0 {
		return fmt.Errorf("devices %v, %w", mapped, err)
	}
	mounts, err := mounttest.Mentioning(runDir())
	if err != nil || len(mounts) > 0 {
		return fmt.Errorf("%d mounts of %s, %w", len(mounts), runDir(), err)
	}
	dirs, err := filepath.Glob(runDir() + "/*/*")
	if err != nil || len(dirs) > 0 {
		return fmt.Errorf("files %v, %w", dirs, err)
	}
	for _, run := range dirs {
		daemons, err := storaged.List(run)
		if err != nil || len(daemons) > 0 {
			return fmt.Errorf("storage daemons %v, %w", daemons, err)
		}
	}
	return os.RemoveAll(runDir())
}

// world has the volumes of one test.
type world struct {
	*volume.Volumes
	*testing.T
	options volume.Options
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, options: volume.Options{
		Dir: t.TempDir(), Run: filepath.Join(runDir(), strings.ToLower(rand.Text()[:6])), Instance: instance(), Backend: backendWanted(),
		Guard: []string{"/proc/self/exe", asGuard}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	w.Volumes = volume.New(w.options)
	if err := w.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		ids, err := w.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := w.Release(finishtest.Context(t), id); err != nil {
				t.Error(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(w.options.Run); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", w.options.Run, err)
		}
	})
	return w
}

// reopen closes the volumes, and their successor takes over the open ones.
func (w *world) reopen() {
	w.Helper()
	if err := w.Close(); err != nil {
		w.Fatal(err)
	}
	w.Volumes = volume.New(w.options)
	if err := w.Open(w.Context()); err != nil {
		w.Fatal(err)
	}
}

const mib = 1 << 20

func encrypted(size int64) volume.Spec {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return volume.Spec{ID: hangar.NewVolumeID(), Size: size, Key: key}
}

func plain(size int64) volume.Spec {
	return volume.Spec{ID: hangar.NewVolumeID(), Size: size}
}

// kinds runs a test for either kind of volume.
func kinds(t *testing.T, size int64, test func(t *testing.T, w *world, spec volume.Spec)) {
	t.Helper()
	for name, spec := range map[string]volume.Spec{"encrypted": encrypted(size), "plain": plain(size)} {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t), spec) })
	}
}

// byKernel reports whether the kernel alone runs a device, without a storage daemon.
func byKernel(d *volume.Device) bool { return strings.HasPrefix(d.Path(), "/dev/mapper/") }

// counts reports whether changes on a device are counted.
func counts(d *volume.Device) bool { return !byKernel(d) }

func (w *world) create(spec volume.Spec) {
	w.Helper()
	if err := w.Create(w.Context(), spec); err != nil {
		w.Fatal(err)
	}
}

func (w *world) attach(spec volume.Spec) *volume.Device {
	w.Helper()
	d, err := w.Attach(w.Context(), spec)
	if err != nil {
		w.Fatal(err)
	}
	return d
}

func (w *world) mount(d *volume.Device) volume.Mounted {
	w.Helper()
	m, err := d.Mount(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return m
}

// mounted makes a volume with a file system, and mounts it.
func (w *world) mounted(spec volume.Spec) (*volume.Device, string) {
	w.Helper()
	w.create(spec)
	d := w.attach(spec)
	if err := d.Format(w.Context()); err != nil {
		w.Fatal(err)
	}
	return d, w.mount(d).Dir
}

func (w *world) close(d *volume.Device) {
	w.Helper()
	if err := d.Close(finishtest.Context(w)); err != nil {
		w.Fatal(err)
	}
}

// closeLost closes a device that went away.
func (w *world) closeLost(d *volume.Device) {
	w.Helper()
	if err := d.Close(finishtest.Context(w)); !errors.Is(err, volume.ErrLost) {
		w.Fatalf("closed: %v", err)
	}
}

func (w *world) image(spec volume.Spec) string {
	return filepath.Join(w.options.Dir, string(spec.ID), "image")
}
