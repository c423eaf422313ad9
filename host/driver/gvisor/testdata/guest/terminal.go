package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal describes standard input.
func terminal() string {
	size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	if err != nil {
		return "no terminal"
	}
	name, err := os.Readlink("/proc/self/fd/0")
	must(err)
	return fmt.Sprintf("%s %d %d", filepath.Dir(name), size.Row, size.Col)
}

// waitSize returns when the terminal has that many rows.
func waitSize(rows int) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	for {
		size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		must(err)
		if int(size.Row) == rows {
			fmt.Println("rows", rows)
			return
		}
		<-c
	}
}
