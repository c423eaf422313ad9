package fake

import (
	"context"
	"errors"
	"io"

	"github.com/pkg/sftp"

	"github.com/hangar-platform/hangar"
)

// served combines the standard streams of a process.
type served struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer.
func (served) Close() error { return nil }

// files are the files that a Machine serves by SFTP. They live as long as the World in memory.
func (w *World) files(id hangar.MachineID) sftp.Handlers {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.served[id]; !ok {
		w.served[id] = sftp.InMemHandler()
	}
	return w.served[id]
}

// sftp serves the files of the Machine.
func (p *process) sftp(ctx context.Context) (hangar.ExecResult, error) {
	server := sftp.NewRequestServer(served{p.in, p.out}, p.world.files(p.sandbox.Spec.ID))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, io.EOF) {
			return p.fail("%v", err)
		}
		return hangar.ExecResult{}, nil
	case <-ctx.Done(): // a read cannot be interrupted; the server ends with its stream
		return hangar.ExecResult{}, ctx.Err()
	}
}
