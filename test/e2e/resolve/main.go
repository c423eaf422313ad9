// Command resolve is the program by which end-to-end tests look up names in Machines
// with Go's own resolver.
//
//	resolve NAME             print the addresses, one on each line
//	resolve watch NAME N     print the time, in Unix nanoseconds, and the addresses,
//	                         first and after each of N changes
//	resolve time NAME N      look up N times, one after the other, and print how long half
//	                         and 99 of 100 of the lookups took, in nanoseconds
//	resolve flood NAME       ask the name server without end, and read no answer
//	resolve spin             keep a processor busy
//	resolve sleep            do nothing until a signal comes
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

func main() {
	log.SetFlags(0)
	switch {
	case len(os.Args) == 2 && os.Args[1] == "sleep":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		<-stop
	case len(os.Args) == 2 && os.Args[1] == "spin":
		for {
			runtime.Gosched()
		}
	case len(os.Args) == 2:
		addrs, err := lookup(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Join(addrs, "\n"))
	case len(os.Args) == 3 && os.Args[1] == "flood":
		flood(os.Args[2])
	case len(os.Args) == 4:
		n, err := strconv.Atoi(os.Args[3])
		if err != nil || n < 1 {
			log.Fatal("not a number: ", os.Args[3])
		}
		switch os.Args[1] {
		case "watch":
			watch(os.Args[2], n)
		case "time":
			measure(os.Args[2], n)
		}
	default:
		log.Fatal("usage: resolve NAME | watch NAME N | time NAME N | flood NAME | spin | sleep")
	}
}

func lookup(name string) ([]string, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip6", name)
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out, err
}

func watch(name string, changes int) {
	last := "?"
	for changes >= 0 {
		addrs, _ := lookup(name) // none, when the name is not there
		now := time.Now()
		if said := strings.Join(addrs, ","); said != last {
			fmt.Printf("%d %s\n", now.UnixNano(), said)
			last = said
			changes--
		}
		time.Sleep(time.Millisecond)
	}
}

func measure(name string, n int) {
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if _, err := lookup(name); err != nil {
			log.Fatal(err)
		}
		took[i] = time.Since(began)
		time.Sleep(time.Millisecond)
	}
	slices.Sort(took)
	fmt.Println(int64(took[n/2]), int64(took[n*99/100]))
}

func flood(name string) {
	msg, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeAAAA).Pack()
	if err != nil {
		log.Fatal(err)
	}
	conn, err := net.Dial("udp", "[fdaa::3]:53")
	if err != nil {
		log.Fatal(err)
	}
	for {
		_, _ = conn.Write(msg) // what does not leave is none of the flood
	}
}
