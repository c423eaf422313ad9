package power

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// record puts a disk in the place of an image file that logs every write and every flush
// which reaches it, in their order. It returns the file of the log, and what takes the disk
// away again and completes the log.
func record(t *testing.T, image string) (log string, end func()) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	disk := filepath.Join(dir, "disk")
	err := errors.Join(os.Rename(image, disk), os.WriteFile(log, nil, 0o600), os.WriteFile(image, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("qemu-storage-daemon",
		"--blockdev", "driver=file,node-name=image,discard=unmap,filename="+disk,
		"--blockdev", "driver=file,node-name=log,filename="+log,
		"--blockdev", "driver=blklogwrites,node-name=logged,file=image,log=log",
		"--export", "type=fuse,id=export,node-name=logged,mountpoint="+image+",writable=on,growable=off",
	)
	var said strings.Builder
	daemon.Stdout, daemon.Stderr = &said, &said
	if err := daemon.Start(); err != nil {
		t.Fatalf("%v; it is in Debian's package qemu-system-common", err)
	}
	ended := make(chan struct{})
	go func() { _ = daemon.Wait(); close(ended) }()
	end = sync.OnceFunc(func() {
		if err := daemon.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		<-ended
	})
	t.Cleanup(end)
	for began := time.Now(); !isMount(image); time.Sleep(5 * time.Millisecond) {
		select {
		case <-ended:
			t.Fatalf("qemu-storage-daemon: %s", said.String())
		default:
		}
		if time.Since(began) > time.Minute {
			t.Fatal("qemu-storage-daemon exports nothing")
		}
	}
	return log, end
}

// isMount reports whether something is mounted on a file.
func isMount(path string) bool {
	mounts, err := os.ReadFile("/proc/self/mounts")
	return err == nil && strings.Contains(string(mounts), " "+path+" ")
}

// copyFile copies a file with its holes.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}
