package hangup_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar/internal/hangup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is both ends of a connection.
func pair(t *testing.T, network, address string) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

func TestHangUp(t *testing.T) {
	var w hangup.Watch
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": t.TempDir() + "/s"} {
		for what, hangUp := range map[string]func(net.Conn) error{
			"closed":         net.Conn.Close,
			"closed by half": func(c net.Conn) error { return c.(interface{ CloseWrite() error }).CloseWrite() },
		} {
			t.Run(network+" "+what, func(t *testing.T) {
				stays, other := pair(t, network, address)
				goes, far := pair(t, network, address)
				lost := make(chan string, 2)
				leave, err := w.Add(stays.(syscall.Conn), func() { lost <- "stays" })
				if err != nil {
					t.Fatal(err)
				}
				remove, err := w.Add(goes.(syscall.Conn), func() { lost <- "goes" })
				if err != nil {
					t.Fatal(err)
				}
				// Sent data is no hang-up.
				if _, err := other.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if err := hangUp(far); err != nil {
					t.Fatal(err)
				}
				select {
				case who := <-lost:
					if who != "goes" {
						t.Errorf("%s is lost", who)
					}
				case <-time.After(time.Minute):
					t.Fatal("a hang-up goes unnoticed")
				}
				remove()
				leave()
				if err := hangUp(other); err != nil {
					t.Fatal(err)
				}
				select {
				case who := <-lost:
					t.Errorf("%s is lost after it was removed", who)
				case <-time.After(10 * time.Millisecond):
				}
			})
		}
	}
}

// TestMany loses more connections at once than are handled in parallel; each is then opened again.
func TestMany(t *testing.T) {
	var w hangup.Watch
	for range 2 {
		const conns = 200
		lost := make(chan int, conns)
		var far []net.Conn
		for i := range conns {
			a, b := pair(t, "tcp", "127.0.0.1:0")
			if _, err := w.Add(a.(syscall.Conn), func() { lost <- i }); err != nil {
				t.Fatal(err)
			}
			far = append(far, b)
		}
		for _, c := range far {
			_ = c.Close()
		}
		seen := map[int]bool{}
		for len(seen) < conns {
			select {
			case i := <-lost:
				if seen[i] {
					t.Errorf("%d is lost twice", i)
				}
				seen[i] = true
			case <-time.After(time.Minute):
				t.Fatalf("%d of %d are lost", len(seen), conns)
			}
		}
	}
}
