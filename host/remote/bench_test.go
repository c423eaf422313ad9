package remote_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/hangar-platform/hangar"
)

// BenchmarkEnter lets a request into a Machine of another host and out again, over loopback.
func BenchmarkEnter(b *testing.B) {
	d := &door{}
	s := &stub{id: other, enter: d.enter}
	w := newWorld(b, s, s)
	enter := func(b *testing.B) {
		b.Helper()
		leave, err := w.gate().EnterMachine(hangar.MachineRef{AppID: "app", ID: "1"}, 80)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
	enter(b) // connects
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			enter(b)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				enter(b)
			}
		})
	})
}

// BenchmarkCall asks another host for one Machine.
func BenchmarkCall(b *testing.B) {
	s := &stub{id: other, room: func() (hangar.HostRoom, error) { return hangar.HostRoom{Memory: 1}, nil }}
	w := newWorld(b, s, s)
	for b.Loop() {
		if _, err := w.agent().Room(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// echoing is a connection to a Machine with a program that sends back what it gets.
func echoing(b *testing.B) net.Conn {
	b.Helper()
	hostEnd, program := tcpPair(b)
	go func() { _, _ = io.Copy(program, program) }()
	s := &stub{id: other, dial: func(context.Context, int) (net.Conn, error) { return hostEnd, nil }}
	w := newWorld(b, s, s)
	conn, err := w.gate().DialService(b.Context(), hangar.MachineRef{ID: "1"}, 80)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// BenchmarkConnection sends a small request over a connection that is open, and reads the answer.
func BenchmarkConnection(b *testing.B) {
	conn := echoing(b)
	message := make([]byte, 200)
	for b.Loop() {
		if _, err := conn.Write(message); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkThroughput sends large pieces there and back.
func BenchmarkThroughput(b *testing.B) {
	conn := echoing(b)
	piece := make([]byte, 256<<10)
	b.SetBytes(int64(len(piece)))
	done := make(chan error, 1)
	n := 0
	go func() {
		_, err := io.Copy(io.Discard, conn)
		done <- err
	}()
	for b.Loop() {
		n++
		if _, err := conn.Write(piece); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.Close()
	<-done
}
