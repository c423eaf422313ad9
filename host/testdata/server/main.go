// Command server is what the tests of the gate run in a Machine: it says when it listens,
// answers every connection, and has a file.
package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	l, err := net.Listen("tcp4", ":8080")
	if err != nil {
		panic(err)
	}
	fmt.Println("listening", time.Now().UnixNano())
	if err := os.WriteFile("/page", make([]byte, 1<<20), 0o600); err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			continue
		}
		_, _ = c.Write([]byte("hello\n"))
		_ = c.Close()
	}
}
