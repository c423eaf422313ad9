// Package files copies files between this computer and a Machine, by SFTP (draft-ietf-secsh-filexfer-02).
//
// The server is the platform's own program in the Machine, which the API executes there. It needs nothing from the
// image or the network. A Machine is not trusted: names of files that it returns are checked, so that none leads out
// of the target directory.
package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/pkg/sftp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// Session is a connection to the files of a Machine. Close it.
type Session struct {
	*sftp.Client

	stop  context.CancelFunc
	ended chan struct{} // closed when the program has ended
	err   error         // of the program, after ended is closed
}

// Open executes the program in a started Machine.
func Open(ctx context.Context, machines hangar.MachineExecer, ref hangar.MachineRef) (*Session, error) {
	ctx, stop := context.WithCancel(ctx)
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	s := &Session{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.err = serve(ctx, machines, ref, toServer, fromServer)
		_ = toServer.Close() // pipes in memory close without an error
		_ = fromServer.CloseWithError(io.EOF)
	}()
	var err error
	if s.Client, err = sftp.NewClientPipe(out, in, sftp.UseConcurrentWrites(true)); err != nil {
		stop()
		<-s.ended
		if s.err != nil && !errors.Is(s.err, context.Canceled) {
			err = s.err
		}
		return nil, err
	}
	return s, nil
}

// serve runs the program until the end of its input.
func serve(ctx context.Context, machines hangar.MachineExecer, ref hangar.MachineRef, in io.Reader, out io.Writer) error {
	var said strings.Builder
	result, err := machines.ExecMachine(ctx, ref, hangar.ExecRequest{Command: []string{hangar.SSHProgram, "sftp"}}, hangar.ExecStreams{Stdin: in, Stdout: out, Stderr: &said})
	switch {
	case hangar.CodeOf(err) == hangar.CodeInvalid:
		return cli.WithHint(hangar.Errorf(hangar.CodeFailedPrecondition, "", "Machine %s was started before its host could serve files", ref.ID),
			fmt.Sprintf("restart it: hangar machine restart %s %s", ref.App, ref.ID))
	case err == nil && result.ExitCode != 0:
		return fmt.Errorf("the program that serves files ended with exit code %d: %s", result.ExitCode, strings.TrimSpace(said.String()))
	}
	return err
}

// Close ends the session.
func (s *Session) Close() error {
	err := s.Client.Close()
	<-s.ended
	s.stop()
	return errors.Join(err, s.err)
}

// Why explains the failure of an operation on a file of the Machine.
func (s *Session) Why(name string, err error) error {
	if errors.Is(err, sftp.ErrSSHFxConnectionLost) || errors.Is(err, io.ErrClosedPipe) {
		<-s.ended
		if s.err != nil {
			return s.err
		}
	}
	return fmt.Errorf("%s in the Machine: %w", Printable(name), err)
}

// Find calls found for a file or directory and everything below it, and failed for each part that
// cannot be read.
func (s *Session) Find(ctx context.Context, root string, found func(name string, info fs.FileInfo) error, failed func(error)) error {
	for w := s.Walk(root); w.Step(); {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := w.Err(); err != nil {
			if err = s.Why(w.Path(), err); w.Path() == root {
				return err
			}
			failed(err)
			continue
		}
		if err := found(w.Path(), w.Stat()); err != nil {
			return err
		}
	}
	return nil
}

// List returns the entries of a directory, sorted by name, or the file itself.
func (s *Session) List(ctx context.Context, name string) ([]fs.FileInfo, error) {
	info, err := s.Stat(name)
	if err != nil {
		return nil, s.Why(name, err)
	}
	if !info.IsDir() {
		return []fs.FileInfo{info}, nil
	}
	list, err := s.ReadDirContext(ctx, name)
	if err != nil {
		return nil, s.Why(name, err)
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return cmp.Compare(a.Name(), b.Name()) })
	return list, nil
}
