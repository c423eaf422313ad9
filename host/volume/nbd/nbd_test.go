package nbd

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// serve negotiates an export of a MiB with a client, and then reads requests until the connection
// ends, without answering.
func serve(t *testing.T, conn net.Conn) {
	t.Helper()
	be := binary.BigEndian
	send := func(values ...any) {
		for _, v := range values {
			if err := binary.Write(conn, be, v); err != nil {
				t.Error(err)
			}
		}
	}
	send(uint64(magicInit), uint64(magicOption), uint16(flagFixed|flagNoZeroes))
	var flags uint32
	if err := binary.Read(conn, be, &flags); err != nil {
		t.Error(err)
	}
	for option := uint32(0); option != optGo; {
		var h struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(conn, be, &h); err != nil {
			t.Error(err)
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(h.Length)); err != nil {
			t.Error(err)
		}
		option = h.Option
		if option == optGo {
			send(uint64(magicOptReply), option, uint32(repInfo), uint32(12), uint16(infoExport), uint64(1<<20), uint16(0))
		}
		send(uint64(magicOptReply), option, uint32(repAck), uint32(0))
	}
	_, _ = io.Copy(io.Discard, conn)
}

// TestSilentServer: if a server stops answering, the connection breaks after Patience and not
// before; without pending requests it may be silent.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go serve(t, far)
		c, err := newClient(near, "export", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * Patience)
		began := time.Now()
		_, err = c.ReadAt(make([]byte, 512), 0)
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != Patience {
			t.Errorf("read: %v after %v", err, took)
		}
		if err := errors.Join(c.Close(), far.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestSilentHandshake: a handshake waits no longer either.
func TestSilentHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		if _, err := newClient(near, "export", nil); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("handshake: %v", err)
		}
	})
}
