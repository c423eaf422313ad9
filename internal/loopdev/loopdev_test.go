package loopdev_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/loopdev"
)

// A process that may open no more descriptors does not take it for a host without loop devices.
func TestNoDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	list, err := loopdev.List(func(string) bool { return true })
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("listed: %v, %v", list, err)
	}
}
