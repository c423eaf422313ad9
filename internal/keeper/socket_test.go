package keeper

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveOld is a keeper without support for sockets. It serves until quit.
func serveOld(listener *net.UnixListener) {
	k := &keeper{listener: listener, most: 100, held: map[string]descriptor{}}
	for {
		conn, err := listener.AcceptUnix()
		must(err)
		b, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
		for {
			n, oobn, _, _, err := conn.ReadMsgUnix(b, rights)
			if err != nil {
				break
			}
			switch m := decode(b[:n]); m[0] {
			case wordHold:
				must(k.hold(m, rights[:oobn]))
			case wordList:
				must(k.list(conn))
			case wordQuit:
				must(send(conn, message{wordBye, strconv.Itoa(os.Getpid())}, nil))
				return
			default:
				must(send(conn, message{wordFailed, "", "unknown request " + strconv.Quote(m[0])}, nil))
			}
		}
		must(conn.Close())
	}
}

// A socket accepts connections while no daemon runs, and the next client gets them.
func TestSocketsSurvive(t *testing.T) {
	h := newHost(t)
	c := h.client(t)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	if len(c.TakeSockets()) != 0 {
		t.Error("a new keeper holds sockets")
	}
	fifo := machine(t, "text")
	c.Hold("shop/1", fifo.Name(), fifo)
	c.HoldSocket("tcp", l)
	c.HoldSocket("udp", u)
	c.HoldSocket("other", u)
	c.Drop("other")
	tcpAddr, udpAddr := l.Addr().String(), u.LocalAddr().String()
	must(h.started[0].Kill()) // the next keeper gets them, too
	awaitReplacement(t, c, h, 2)
	must(c.Close())
	must(l.Close())
	must(u.Close())

	conn, err := net.Dial("tcp", tcpAddr) // no daemon runs
	must(err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	must(err)
	packet, err := net.Dial("udp", udpAddr)
	must(err)
	defer packet.Close()
	_, err = packet.Write([]byte("datagram"))
	must(err)

	c = h.client(t)
	if got := paths(c); len(got) != 1 || got[0] != fifo.Name() {
		t.Errorf("FIFOs are %v", got)
	}
	taken := c.TakeSockets()
	if len(taken) != 2 || len(c.TakeSockets()) != 0 {
		t.Fatalf("the keeper holds %v", taken)
	}
	nl, err := net.FileListener(taken["tcp"])
	must(err)
	defer nl.Close()
	must(taken["tcp"].Close())
	accepted, err := nl.Accept()
	must(err)
	defer accepted.Close()
	b := make([]byte, 100)
	if n, err := accepted.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	nu, err := net.FilePacketConn(taken["udp"])
	must(err)
	defer nu.Close()
	must(taken["udp"].Close())
	if n, _, err := nu.ReadFrom(b); err != nil || string(b[:n]) != "datagram" {
		t.Errorf("received %q, %v", b[:n], err)
	}
	c.Drop("udp")
	c.Drop("shop/1")
	must(c.Close())
	c = h.client(t) // which leaves it untaken
	c.Drop("tcp")
	must(c.Close())
}

func TestSocketsAreNotHeldForNobody(t *testing.T) {
	conn, ended := attended(t, 0)
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	defer u.Close()
	must(handOver(conn, "name", holding{wordSocket, "", u}))
	for range 5 { // it stays while a client is connected
		time.Sleep(patrolOften)
		got, err := sockets(conn)
		if err != nil || len(got) != 1 {
			t.Fatalf("held are %v, %v", got, err)
		}
		must(got["name"].Close())
	}
	must(conn.Close())
	select {
	case err := <-ended:
		must(err)
	case <-time.After(time.Minute):
		t.Fatal("the keeper does not end")
	}
}

// A keeper of an older version is replaced by one that supports sockets, without loss.
func TestOlderKeeperIsReplaced(t *testing.T) {
	h := newHost(t)
	h.role = roleOld
	socket, err := net.ListenUnix(network, &net.UnixAddr{Name: mkdirs(h.socket), Net: network})
	must(err)
	socket.SetUnlinkOnClose(false)
	f, err := socket.File()
	must(err)
	must(socket.Close())
	old, err := h.start(f)
	must(err)
	must(f.Close())
	conn, err := dial(t.Context(), h.socket)
	must(err)
	fifo := machine(t, "text")
	gone := machine(t, "gone")
	must(handOver(conn, "shop/1", holding{wordHold, fifo.Name(), fifo}))
	must(handOver(conn, "shop/2", holding{wordHold, gone.Name(), gone}))
	must(conn.Close())
	must(fifo.Close())
	must(gone.Close())
	must(os.Remove(gone.Name()))

	h.role = ""
	go func() { _, _ = old.Wait() }()
	must(os.Rename(fifo.Name(), fifo.Name()+"-away"))
	must(os.Symlink(fifo.Name(), fifo.Name()))
	if err := New(Options{Socket: h.socket, Start: h.start, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}).Open(t.Context()); !errors.Is(err, unix.ELOOP) {
		t.Fatalf("opened although one of its FIFOs cannot be: %v", err)
	}
	must(os.Rename(fifo.Name()+"-away", fifo.Name()))
	c := h.client(t)
	if got := c.Inherited(); len(got) != 2 {
		t.Fatalf("the old keeper held %v", got)
	}
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	c.HoldSocket("udp", u)
	must(c.Close())
	must(u.Close())
	c = h.client(t)
	if got := paths(c); len(got) != 1 || got[0] != fifo.Name() {
		t.Errorf("the new keeper holds %v", got)
	}
	taken := c.TakeSockets()
	if len(taken) != 1 {
		t.Errorf("and the sockets %v", taken)
	}
	for _, f := range taken {
		must(io.Closer(f).Close())
	}
	if got := content(fifo.Name()); got != "text" {
		t.Errorf("kept is %q", got)
	}
	c.Drop("udp")
	c.Drop("shop/1")
	must(c.Close())
	if len(h.started) != 2 {
		t.Errorf("%d keepers were started", len(h.started))
	}
}

// mkdirs makes the directory of a file.
func mkdirs(file string) string {
	must(os.MkdirAll(filepath.Dir(file), 0o700))
	return file
}
