package logs

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// TestOutputOfOneApp: an App that writes endlessly waits, does not delay other Apps, and can be
// released while it waits.
func TestOutputOfOneApp(t *testing.T) {
	s := open(t, Options{MaxRate: 1})
	noisy, quiet := fifoOf(t), fifoOf(t)
	must(s.Capture(ref, noisy))
	other := hangar.MachineRef{App: "other", AppID: "other", ID: "fedcba98765432"}
	must(s.Capture(other, quiet))
	out := machineOutput(t, noisy)
	written := make(chan error, 1)
	go func() {
		line := append(slices.Repeat([]byte("x"), 1023), '\n')
		var err error
		for range 1024 {
			if _, err = out.Write(line); err != nil {
				break
			}
		}
		written <- err
	}()
	for waiting, err := 0, error(nil); waiting < fifoSize/2; <-time.After(time.Millisecond) {
		conn, connErr := out.SyscallConn()
		must(connErr)
		must(conn.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
		must(err)
	}
	write(t, machineOutput(t, quiet), "heard\n")
	for {
		page, err := s.Read(other.AppID, hangar.LogQuery{Limit: 10})
		must(err)
		if slices.Equal(messages(page.Entries), []string{"heard"}) {
			break
		}
		<-time.After(time.Millisecond)
	}
	select {
	case <-written:
		t.Error("all was taken at once")
	default:
	}
	must(s.Release(ref.ID))
	must(out.Close()) // ends the writer
	<-written
	must(s.Release(other.ID))
}
