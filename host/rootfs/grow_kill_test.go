package rootfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// TestGrowthKilled kills the growth of a layer's file system at any moment: the next mount
// completes it, with all its content.
func TestGrowthKilled(t *testing.T) {
	racetest.Skip(t)
	dir := newDir(t)
	l := open(t, rootfs.Options{Dir: dir, Size: layerSize})
	id := machines[0]
	data := filepath.Join(l.Path(id), "data")
	image, mark := filepath.Join(dir, string(id)+".img"), filepath.Join(dir, string(id)+".growing")
	files := map[string][]byte{}
	for i := range 200 {
		content := make([]byte, rand.IntN(200<<10))
		for j := range content {
			content[j] = byte(rand.Uint32())
		}
		files[fmt.Sprintf("%d/%d", i%17, i)] = content
	}
	var killed int
	var took time.Duration // without a kill
	for round := range 13 {
		must(t, l.Mount(t.Context(), id, layerSize, rootfs.Fresh))
		for name, content := range files {
			path := filepath.Join(data, name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			must(t, os.WriteFile(path, content, 0o600))
		}
		before := tree(t, data)
		must(t, l.Unmount(id))
		const size = 20 << 30 // has more descriptors of groups than there is room for
		if round == 0 {
			began := time.Now()
			must(t, l.Mount(t.Context(), id, size, rootfs.Kept))
			took = time.Since(began)
		} else if err := mountKilled(t.Context(), l, size, rand.N(took/2)); err != nil {
			killed++
			must(t, l.Mount(t.Context(), id, size, rootfs.Kept))
		} else { // the first round may have been slower
			took = max(took/2, 2)
		}
		if after := tree(t, data); !slices.Equal(after, before) {
			t.Errorf("round %d: there were %d files, now there are %d", round, len(before), len(after))
		}
		for name, content := range files {
			if got, err := os.ReadFile(filepath.Join(data, name)); err != nil || !bytes.Equal(got, content) {
				t.Errorf("round %d: %s has %d bytes of %d, %v", round, name, len(got), len(content), err)
			}
		}
		usage, err := l.Usage(id)
		must(t, err)
		if usage.Bytes < size*2/3 {
			t.Errorf("round %d: of %d bytes, df shows %d", round, size, usage.Bytes)
		}
		must(t, l.Unmount(id))
		eventually(t, func() error { return ext4.Check(t.Context(), image) })
		if _, err := os.Lstat(mark); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("round %d: the mark of a growth is left: %v", round, err)
		}
	}
	if killed == 0 {
		t.Error("nothing was killed")
	}
	t.Logf("%d of 12 were killed; a growth takes %v", killed, took)
}

// TestInterruptedGrowth: the mark of an interrupted growth is removed with its layer.
func TestInterruptedGrowth(t *testing.T) {
	dir := newDir(t)
	l := open(t, rootfs.Options{Dir: dir, Size: layerSize})
	id := machines[0]
	mark := filepath.Join(dir, string(id)+".growing")
	for name, end := range map[string]func() error{
		"undone":  func() error { return l.Mount(t.Context(), id, layerSize, rootfs.Kept) },
		"fresh":   func() error { return l.Mount(t.Context(), id, layerSize, rootfs.Fresh) },
		"removed": func() error { return l.Remove(id) },
	} {
		must(t, l.Mount(t.Context(), id, layerSize, rootfs.Fresh))
		must(t, l.Unmount(id))
		must(t, os.WriteFile(mark, nil, 0o600))
		if ids, err := l.List(); err != nil || len(ids) != 1 || ids[0] != id {
			t.Errorf("%s: listed %v, %v", name, ids, err)
		}
		must(t, end())
		if _, err := os.Lstat(mark); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the mark is left: %v", name, err)
		}
	}
}

// mountKilled mounts the layer of the first Machine, and kills resize2fs some time after it
// has begun.
func mountKilled(ctx context.Context, l *rootfs.Layers, size int64, after time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- l.Mount(ctx, machines[0], size, rootfs.Kept) }()
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		if pid := childThatRuns("resize2fs"); pid > 0 {
			<-time.After(after)
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			return <-ended
		}
	}
}

// childThatRuns returns a child of this process that runs a program, or 0.
func childThatRuns(program string) int {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		children, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(children)) {
			comm, _ := os.ReadFile("/proc/" + child + "/comm")
			if pid, err := strconv.Atoi(child); err == nil && strings.TrimSpace(string(comm)) == program {
				return pid
			}
		}
	}
	return 0
}

// tree lists all that is below a directory.
func tree(tb testing.TB, dir string) (paths []string) {
	tb.Helper()
	must(tb, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}
