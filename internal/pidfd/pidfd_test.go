package pidfd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pidfd"
)

func TestAwait(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	process, err := pidfd.Open(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if err := pidfd.AwaitContext(ctx, process); !errors.Is(err, why) {
		t.Errorf("of one that runs: %v", err)
	}
	if err := pidfd.Signal(process, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := pidfd.AwaitContext(t.Context(), process); err != nil {
		t.Errorf("of one that was killed: %v", err)
	}
	_ = child.Wait()
	if err := pidfd.Signal(process, unix.SIGKILL); err != nil {
		t.Errorf("signal to one that has ended: %v", err)
	}
	if err := pidfd.AwaitContext(t.Context(), process); err != nil {
		t.Errorf("of one that has ended: %v", err)
	}
	if _, err := pidfd.Open(child.Process.Pid); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("opened: %v", err)
	}
	if _, err := pidfd.Open(0); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("number 0: %v", err)
	}
}

func TestClosed(t *testing.T) {
	self, err := pidfd.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- pidfd.Await(self) }()
	if err := self.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it says that this process has ended")
	}
}

// This process may open no more descriptors, which says nothing about another one.
func TestNoDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := pidfd.Open(os.Getpid())
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, pidfd.ErrGone) {
		t.Errorf("opened: %v", err)
	}
}
