package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// file is a file of a Machine on another host. It stays open there until Close.
type file struct {
	p       *peer
	d       *duplex
	size    int64
	modTime time.Time
	close   func()

	offset int64
	piece  []byte // what follows at offset, that was read ahead
	ahead  int    // how many bytes to fetch next at least: more with each read that follows another
}

var _ hangar.MachineFile = (*file)(nil)

// OpenMachineFile implements hangar.MachineGate. ctx is of the file as long as it is open, as it is
// of one of this host.
func (g *gate) OpenMachineFile(ctx context.Context, ref hangar.MachineRef, path string) (hangar.MachineFile, error) {
	d, err := g.both(ctx, "OpenMachineFile", ref, path)
	if err != nil {
		return nil, err
	}
	payload, err := g.opened(ctx, d)
	var opened openedFile
	if err == nil {
		err = json.Unmarshal(payload, &opened)
	}
	if err != nil {
		d.end()
		return nil, err
	}
	detach := context.AfterFunc(ctx, d.end)
	f := &file{p: g.peer, d: d, size: opened.Size, modTime: time.Unix(0, opened.ModTime)}
	f.close = sync.OnceFunc(func() {
		detach()
		d.end()
	})
	return f, nil
}

// Size implements hangar.MachineFile.
func (f *file) Size() int64 { return f.size }

// ModTime implements hangar.MachineFile.
func (f *file) ModTime() time.Time { return f.modTime }

// Read implements io.Reader.
func (f *file) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(f.piece) == 0 {
		if f.offset >= f.size {
			return 0, io.EOF
		}
		n := min(maxPart, max(len(p), f.ahead))
		if err := f.fetch(int(min(int64(n), f.size-f.offset))); err != nil {
			return 0, err
		}
		f.ahead = 2 * n
	}
	n := copy(p, f.piece)
	f.piece, f.offset = f.piece[n:], f.offset+int64(n)
	return n, nil
}

// fetch reads ahead.
func (f *file) fetch(n int) error {
	want, err := json.Marshal(part{f.offset, n})
	if err != nil {
		return err
	}
	if err := f.d.out.write(kindRead, want); err != nil {
		return f.p.unreachable(err)
	}
	k, payload, err := readFrame(f.d.answer, maxPart)
	switch {
	case err != nil:
		return f.p.unreachable(lostError{err})
	case k == kindError:
		return rebuilt(payload)
	case len(payload) == 0:
		return io.ErrUnexpectedEOF // it has become shorter
	}
	f.piece = payload
	return nil
}

var errBadSeek = errors.New("seek to before the beginning, or from nowhere")

// Seek implements io.Seeker.
func (f *file) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.size
	default:
		return 0, errBadSeek
	}
	if offset < 0 {
		return 0, errBadSeek
	}
	if offset != f.offset {
		f.offset, f.piece, f.ahead = offset, nil, 0
	}
	return offset, nil
}

// Close implements io.Closer. It may be repeated.
func (f *file) Close() error {
	f.close()
	return nil
}
