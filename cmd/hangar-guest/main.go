// Command hangar-guest runs inside Machines for SSH sessions: it serves the files of the Machine, and connects to
// what listens there.
//
// hangar-guest sftp serves SFTP (draft-ietf-secsh-filexfer-02, version 3) on its standard streams.
// hangar-guest connect NETWORK ADDRESS connects, writes a zero byte, and joins its standard streams to the
// connection. A failure to connect is a message on standard output, without a zero byte.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/pkg/sftp"
)

// connectTimeout bounds the wait for a program to take a connection.
const connectTimeout = 10 * time.Second

func main() {
	err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hangar-guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "sftp":
		return serveFiles()
	case len(args) == 3 && args[0] == "connect":
		return connect(args[1], args[2])
	default:
		return errors.New("usage: hangar-guest sftp | connect tcp|unix ADDRESS")
	}
}

// standard is the standard streams as one.
type standard struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer.
func (standard) Close() error { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

func serveFiles() error {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	server, err := sftp.NewServer(standard{os.Stdin, os.Stdout}, sftp.WithServerWorkingDirectory(home))
	if err != nil {
		return err
	}
	if err := server.Serve(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// halfCloser is a connection whose directions end by themselves.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

func connect(network, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	dialled, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		_, _ = io.WriteString(os.Stdout, err.Error())
		return err
	}
	defer dialled.Close()
	conn, ok := dialled.(halfCloser)
	if !ok {
		return fmt.Errorf("%s has connections without ends of their own", network)
	}
	if _, err := os.Stdout.Write([]byte{0}); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}
