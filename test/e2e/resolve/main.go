// Command resolve is the program by which end-to-end tests look up names in Machines
// with Go's own resolver.
//
//	resolve NAME             print the addresses, one on each line
//	resolve watch NAME N     print the time, in Unix nanoseconds, and the addresses,
//	                         first and after each of N changes
//	resolve sleep            do nothing until a signal comes
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	switch {
	case len(os.Args) == 2 && os.Args[1] == "sleep":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		<-stop
	case len(os.Args) == 2:
		addrs, err := lookup(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Join(addrs, "\n"))
	case len(os.Args) == 4 && os.Args[1] == "watch":
		changes, err := strconv.Atoi(os.Args[3])
		if err != nil {
			log.Fatal(err)
		}
		watch(os.Args[2], changes)
	default:
		log.Fatal("usage: resolve NAME | watch NAME N | sleep")
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
