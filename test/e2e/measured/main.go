// Command measured is the program by which end-to-end tests have a Machine use measured resources:
// processor time, memory, its disk, its network.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

var held [][]byte //nolint:gochecknoglobals // what the program keeps in memory

func main() {
	http.HandleFunc("/send", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, number(r))) })
	http.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(number(r)) })
	http.HandleFunc("/burn", func(w http.ResponseWriter, r *http.Request) { burn(w, time.Duration(number(r))*time.Millisecond) })
	http.HandleFunc("/hold", func(_ http.ResponseWriter, r *http.Request) { hold(number(r) << 20) })
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) { write(w, number(r)<<20) })
	http.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) { os.Exit(number(r)) })
	if err := http.ListenAndServe(":8080", nil); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func number(r *http.Request) int {
	n, err := strconv.Atoi(r.URL.RawQuery)
	if err != nil {
		panic(err)
	}
	return n
}

// burn uses processor time of the program.
func burn(w http.ResponseWriter, want time.Duration) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for until := used() + want; used() < until; {
		for range 1_000_000 {
		}
	}
	_, _ = fmt.Fprint(w, "burnt")
}

// hold takes memory and touches each page.
func hold(size int) {
	b := make([]byte, size)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	held = append(held, b)
}

// write writes a file and puts it on the disk.
func write(w http.ResponseWriter, size int) {
	f, err := os.Create("/data")
	if err == nil {
		_, err = f.Write(make([]byte, size))
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	_, _ = fmt.Fprint(w, "written ", err)
}
