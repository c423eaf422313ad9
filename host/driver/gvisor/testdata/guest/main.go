// Command testguest is the program that the tests of drivers run in a Machine: the commands that
// package drivertest defines, and an HTTP server with state to suspend.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
)

func main() {
	args := append(os.Args[1:], "", "")
	switch args[0] {
	case "exit":
		os.Exit(atoi(args[1]))
	case "die":
		die(args[1])
	case "sleep":
		fmt.Println("ready")
		forever()
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], " "))
	case "yell":
		for i := range atoi(args[1]) {
			fmt.Printf("line %d of many\n", i)
		}
	case "complain":
		fmt.Fprintln(os.Stderr, strings.Join(os.Args[2:], " "))
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "trap":
		c := notify(args[1])
		fmt.Println("ready")
		<-c
		os.Exit(atoi(args[2]))
	case "ignore":
		signal.Ignore(syscall.Signal(parse(args[1])))
		fmt.Println("ready")
		forever()
	case "count":
		count()
	case "whoami":
		groups, _ := os.Getgroups()
		dir, _ := os.Getwd()
		fmt.Println(os.Getuid(), os.Getgid(), groups, dir)
	case "env":
		fmt.Println(os.Getenv(args[1]))
	case "hostname":
		name, _ := os.Hostname()
		fmt.Println(name)
	case "resources":
		fmt.Println(runtime.NumCPU(), meminfo())
	case "tty":
		fmt.Println(terminal())
	case "size":
		fmt.Println("ready")
		waitSize(atoi(args[1]))
	case "write":
		must(os.WriteFile(args[1], []byte(args[2]), 0o600))
	case "read":
		b, err := os.ReadFile(args[1])
		must(err)
		fmt.Println(string(b))
	case "eat":
		eat(atoi(args[1]))
	case "orphan":
		orphan()
	case "orphan-parent":
		orphanParent()
	case "listen":
		listen()
	case "inherit":
		fmt.Println("ready")
		forever()
	case "burn":
		burn(atoi(args[1]))
	case "fidelity":
		if args[1] == "limits" {
			say("limits", limits())
			say("umask", umask())
			say("capabilities", allCapabilities())
		} else {
			fidelity(args[1] == "user")
		}
	case "euid":
		fmt.Println(os.Geteuid())
	case "capable":
		capable()
	case "busy":
		busy(atoi(args[1]))
	case "flood":
		flood(atoi(args[1]), args[2] == "ignore")
	case "reopen":
		reopen()
	case "serve":
		serve(atoi(args[1]))
	default:
		fmt.Fprintln(os.Stderr, "unknown word", args[0])
		os.Exit(2)
	}
}

// forever does not return. An empty select would be a deadlock to the Go runtime.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

func parse(name string) hangar.Signal {
	sig, err := hangar.ParseSignal(name)
	must(err)
	return sig
}

func notify(name string) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.Signal(parse(name)))
	return c
}

func die(name string) {
	sig := syscall.Signal(parse(name))
	signal.Reset(sig)
	must(syscall.Kill(os.Getpid(), sig))
	time.Sleep(10 * time.Second)
}

// count increments a counter in memory and in a file at each SIGUSR1, and prints both.
func count() {
	c := notify("USR1")
	n := 0
	f, err := os.OpenFile("/count", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	must(err)
	fmt.Println("ready")
	for range c {
		n++
		_, err := f.WriteString("x")
		must(err)
		info, err := os.Stat("/count")
		must(err)
		fmt.Println("count", n, info.Size())
	}
}

func meminfo() int {
	f, err := os.Open("/proc/meminfo")
	must(err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); fields[0] == "MemTotal:" {
			return atoi(fields[1]) / 1024
		}
	}
	return 0
}

// eat fills memory until it is killed.
func eat(mb int) {
	var hold [][]byte
	for range mb {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		hold = append(hold, b)
	}
	fmt.Println("ate", len(hold))
	forever()
}

// orphan leaves behind a process that only PID 1 can reap, and exits with 0 once that has happened.
func orphan() {
	out, err := exec.Command("/proc/self/exe", "orphan-parent").Output()
	must(err)
	pid := atoi(strings.TrimSpace(string(out)))
	for range 200 {
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	os.Exit(1)
}

// orphanParent starts a process, prints its id and exits without waiting for it.
func orphanParent() {
	child := exec.Command("/proc/self/exe", "exit", "0")
	must(child.Start())
	fmt.Println(child.Process.Pid)
}

// serve is an HTTP server with state: a counter, mb MiB of memory with a checksum, and a file that
// grows with the counter.
func serve(mb int) {
	memory := make([]byte, mb<<20)
	for i := range memory {
		memory[i] = byte(i>>12 ^ i)
	}
	sum := func() string {
		h := sha256.Sum256(memory)
		return hex.EncodeToString(h[:8])
	}
	first := sum()
	f, err := os.OpenFile("/state", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	must(err)
	var mu sync.Mutex
	n := 0
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n++
		_, err := f.WriteString(strconv.Itoa(n) + "\n")
		must(err)
		info, err := os.Stat("/state")
		must(err)
		fmt.Fprintf(w, "%d %t %d\n", n, sum() == first, info.Size())
	})
	l, err := net.Listen("tcp", ":8080")
	must(err)
	fmt.Println("ready")
	must(http.Serve(l, nil))
}
