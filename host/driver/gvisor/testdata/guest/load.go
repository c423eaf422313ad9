package main

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// listen opens listening sockets of several kinds and shares one of them with a child. It prints its
// ports.
func listen() {
	shared, err := net.Listen("tcp", ":80")
	must(err)
	local, err := net.Listen("tcp4", "127.0.0.1:81")
	must(err)
	client, err := net.Dial("tcp4", local.Addr().String())
	must(err)
	defer client.Close()
	everywhere, err := net.ListenPacket("udp", ":53")
	must(err)
	defer everywhere.Close()
	four, err := net.ListenPacket("udp4", ":54")
	must(err)
	defer four.Close()
	connected, err := net.Dial("udp4", "127.0.0.1:54")
	must(err)
	defer connected.Close()
	file, err := shared.(*net.TCPListener).File()
	must(err)
	child := exec.Command("/proc/self/exe", "inherit")
	child.ExtraFiles = []*os.File{file}
	child.Stdout = os.Stdout
	must(child.Start())
	forever()
}

// burn uses processor time, prints how much, in milliseconds of user and system time, and continues
// to run.
func burn(ms int) {
	var used syscall.Rusage
	for n := 0; ; n++ {
		if n%1_000_000 == 0 {
			must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
			if time.Duration(used.Utime.Nano()+used.Stime.Nano()) >= time.Duration(ms)*time.Millisecond {
				break
			}
		}
	}
	fmt.Println(time.Duration(used.Utime.Nano()).Milliseconds(), time.Duration(used.Stime.Nano()).Milliseconds())
	forever()
}

// reopen writes to its output by name, as daemons that log to a file do.
func reopen() {
	for _, name := range []string{"/dev/stdout", "/dev/stderr", "/proc/self/fd/1"} {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		must(err)
		fmt.Fprintln(f, "through", name)
		must(f.Close())
	}
}

// flood prints mb MiB as fast as it can, each line with its offset, and then a checksum.
func flood(mb int, ignore bool) {
	if ignore {
		signal.Ignore(syscall.SIGTERM)
	}
	sum := sha256.New()
	chunk := make([]byte, 0, 64<<10)
	for at := 0; at < mb<<20; at += len(chunk) {
		chunk = chunk[:0]
		for len(chunk) < 63<<10 {
			chunk = fmt.Appendf(chunk, "at %d\n", at+len(chunk))
		}
		sum.Write(chunk)
		_, err := os.Stdout.Write(chunk)
		must(err)
	}
	fmt.Printf("sum %x\n", sum.Sum(nil))
}

// busy keeps n threads running.
func busy(n int) {
	runtime.GOMAXPROCS(n + 1)
	for range n {
		go func() {
			for x := uint64(1); x != 0; x += 2 {
			}
		}()
	}
	fmt.Println("ready")
	forever()
}
