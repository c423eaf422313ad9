package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/minrate"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Bounds of reads from other hosts, and of reads by them.
const (
	readsEach = 32  // concurrent reads for each PushedRead.For; enough for an organization's pulls
	readsAll  = 512 // concurrent reads
	// maxFailures is how often a read resumes after a failure, at the same host or another.
	maxFailures = 4
	againPause  = 200 * time.Millisecond // before the first retry at the same host; grows with each
	rateWindow  = 20 * time.Second       // of the minimum rate
)

// reasonAway is the reason of an unreachable registry: a retry may help.
const reasonAway = "registry_unreachable"

// Errors of content that another host holds.
var (
	// ErrAway means that no host with the content can be reached.
	ErrAway = hangar.Errorf(hangar.CodeUnavailable, reasonAway, "the server that has it cannot be reached")
	// ErrGone means that hosts can be reached and none of them holds the content.
	ErrGone = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "no server has its content any more: push it again")

	errTooMany = hangar.Errorf(hangar.CodeUnavailable, reasonAway, "too many transfers between servers are under way")
	errDamaged = hangar.Errorf(hangar.CodeUnavailable, reasonAway, "the content that a server has of it is damaged")
)

// Blob is a blob of a repository that is open for reading. A blob of another host is verified: the
// read of its last bytes fails if its digest does not match.
type Blob struct {
	io.ReadCloser

	Size int64    // bytes
	file *os.File // nil: another host has it
}

// Local reports whether this host holds the blob.
func (b *Blob) Local() bool { return b.file != nil }

// Blob opens a blob that a repository has, on this host or another. limitKey bounds reads from other
// hosts, see the function of that name. Blob returns ErrNotFound, ErrAway, or another
// hangar.CodeUnavailable.
func (r *Registry) Blob(ctx context.Context, repository, digest, limitKey string) (*Blob, error) {
	f, err := r.openBlob(repository, digest)
	if err == nil {
		fi, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &Blob{ReadCloser: f, Size: fi.Size(), file: f}, nil
	}
	if !errors.Is(err, ErrNotFound) || r.opts.Peers == nil || !validName(repository) || !validDigest(digest) {
		return nil, err
	}
	holders, err := r.catalog.Holders(ctx, repository)
	if err != nil {
		return nil, err
	}
	remote, err := r.openRemote(ctx, hangar.PushedRead{Repository: repository, Digest: digest, For: limitKey}, holders)
	if errors.Is(err, ErrGone) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &Blob{ReadCloser: remote, Size: remote.size}, nil
}

// remoteManifest reads a manifest from another host.
func (r *Registry) remoteManifest(ctx context.Context, repository string, m hangar.PushedManifest, limitKey string) (Manifest, error) {
	if r.opts.Peers == nil {
		return Manifest{}, ErrNotFound
	}
	in, err := r.openRemote(ctx, hangar.PushedRead{Repository: repository, Digest: m.Digest, Manifest: true, For: limitKey}, m.Hosts)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { _ = in.Close() }()
	if in.size > r.opts.ManifestBytes {
		return Manifest{}, errDamaged
	}
	raw, err := io.ReadAll(in)
	return Manifest{Raw: raw, MediaType: m.MediaType, Digest: m.Digest, Remote: true}, err
}

// remote reads content from other hosts. It resumes an interrupted transfer, and returns the last
// bytes only if the whole content matches its digest.
type remote struct {
	r     *Registry
	ctx   context.Context
	in    hangar.PushedRead
	hosts []hangar.HostID
	next  int // index in hosts
	size  int64
	hash  hash.Hash
	leave func()

	failures int
	from     io.ReadCloser // nil: closed
}

// openRemote opens content at one of the hosts. It returns ErrGone or ErrAway if it cannot.
func (r *Registry) openRemote(ctx context.Context, in hangar.PushedRead, hosts []hangar.HostID) (*remote, error) {
	if !r.reads.Take(in.For) {
		return nil, errTooMany
	}
	f := &remote{r: r, ctx: ctx, in: in, size: -1, hash: sha256.New(), leave: sync.OnceFunc(func() { r.reads.Leave(in.For) })}
	f.hosts = slices.DeleteFunc(slices.Clone(hosts), func(h hangar.HostID) bool { return h == r.opts.Host })
	rand.Shuffle(len(f.hosts), func(i, j int) { f.hosts[i], f.hosts[j] = f.hosts[j], f.hosts[i] }) //nolint:gosec // it spreads the load
	if err := f.open(); err != nil {
		f.leave()
		return nil, err
	}
	return f, nil
}

// open requests the unread rest, starting with the next host.
func (f *remote) open() error {
	failed := ErrGone
	for range f.hosts {
		host := f.hosts[f.next%len(f.hosts)]
		f.next++
		content, err := f.ask(host)
		switch {
		case err == nil && f.size >= 0 && content.size != f.size:
			_ = content.Close()
			failed = errDamaged
		case err == nil:
			f.from, f.size = content, content.size
			return nil
		case f.ctx.Err() != nil:
			return f.ctx.Err()
		case hangar.CodeOf(err) != hangar.CodeNotFound:
			failed = ErrAway
			f.r.log.WarnContext(f.ctx, "cannot read content from another host", slog.String("host", string(host)),
				slog.String("repository", f.in.Repository), slog.String("digest", f.in.Digest), slog.Any("error", err))
		}
	}
	return failed
}

// content is the response of one host, with a minimum rate.
type content struct {
	*minrate.Reader

	size int64
}

func (f *remote) ask(host hangar.HostID) (*content, error) {
	reader, err := f.r.opts.Peers.Pushed(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(f.ctx)
	patience := time.AfterFunc(f.r.opts.RateWindow, func() { cancel(minrate.ErrTooSlow) })
	from, err := reader.OpenPushed(ctx, f.in)
	if err == nil && !patience.Stop() {
		err = errors.Join(minrate.ErrTooSlow, from.Close())
	}
	if err != nil {
		patience.Stop()
		cancel(nil)
		return nil, err
	}
	return &content{minrate.New(ctx, cancel, from, f.r.opts.MinRate, f.r.opts.RateWindow), from.Size()}, nil
}

// Read implements io.Reader.
func (f *remote) Read(p []byte) (int, error) {
	for {
		if f.in.Offset >= f.size {
			return 0, f.verified(io.EOF)
		}
		p = p[:min(int64(len(p)), f.size-f.in.Offset)]
		n, err := f.from.Read(p)
		f.hash.Write(p[:n])
		f.in.Offset += int64(n)
		if f.in.Offset == f.size {
			err = f.verified(nil)
			if err != nil {
				n = 0
			}
			return n, err
		}
		if n > 0 || err == nil {
			return n, nil // the next Read returns the error again
		}
		if err := f.resume(err); err != nil {
			return 0, err
		}
	}
}

// verified returns otherwise if the content matches its digest, and errDamaged if not.
func (f *remote) verified(otherwise error) error {
	if "sha256:"+hex.EncodeToString(f.hash.Sum(nil)) == f.in.Digest {
		return otherwise
	}
	f.r.log.ErrorContext(f.ctx, "content of another host does not match its digest",
		slog.String("repository", f.in.Repository), slog.String("digest", f.in.Digest), slog.Any("hosts", f.hosts))
	return errDamaged
}

// resume continues after an interrupted transfer.
func (f *remote) resume(broken error) error {
	_ = f.from.Close()
	if f.ctx.Err() != nil {
		return f.ctx.Err()
	}
	f.r.log.WarnContext(f.ctx, "a transfer from another host broke", slog.String("digest", f.in.Digest), slog.Int64("after", f.in.Offset), slog.Any("error", broken))
	for {
		if f.failures++; f.failures > maxFailures {
			return ErrAway
		}
		if f.failures >= len(f.hosts) {
			if err := pause.For(f.ctx, time.Duration(f.failures)*againPause); err != nil {
				return err
			}
		}
		err := f.open()
		if err == nil || !errors.Is(err, ErrAway) {
			return err
		}
	}
}

// Close implements io.Closer. It may be repeated.
func (f *remote) Close() error {
	f.leave()
	return f.from.Close()
}

// OpenPushed implements hangar.PushedReader: other hosts read this host's content with it. After a
// manifest was read, its blobs are kept for UploadAge, even if the manifest is deleted meanwhile.
func (r *Registry) OpenPushed(_ context.Context, in hangar.PushedRead) (hangar.PushedContent, error) {
	if !validName(in.Repository) || !validDigest(in.Digest) || in.Offset < 0 {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "not a blob of a repository: %.100q of %.100q", in.Digest, in.Repository)
	}
	if !r.served.Take(in.For) {
		return nil, errTooMany
	}
	c, err := r.openHeld(in)
	if err != nil {
		r.served.Leave(in.For)
		if errors.Is(err, ErrNotFound) {
			err = errUnknown(in.Digest)
		}
		return nil, err
	}
	c.leave = sync.OnceFunc(func() { r.served.Leave(in.For) })
	return c, nil
}

// held is content that another host is reading.
type held struct {
	io.Reader

	size  int64
	file  *os.File // nil: in memory
	leave func()
}

func (h *held) Size() int64 { return h.size }

func (h *held) Close() error {
	h.leave()
	if h.file == nil {
		return nil
	}
	return h.file.Close()
}

func (r *Registry) openHeld(in hangar.PushedRead) (*held, error) {
	if in.Manifest {
		raw, err := r.heldManifest(in.Repository, in.Digest)
		if err == nil {
			err = r.hold(in.Repository, raw)
		}
		if err != nil {
			return nil, err
		}
		return &held{Reader: bytes.NewReader(raw[min(in.Offset, int64(len(raw))):]), size: int64(len(raw))}, nil
	}
	f, err := r.openBlob(in.Repository, in.Digest)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil {
		_, err = f.Seek(in.Offset, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open blob: %w", err), f.Close())
	}
	return &held{Reader: f, size: fi.Size(), file: f}, nil
}

// hold renews the age of a manifest's blobs.
func (r *Registry) hold(repository string, raw []byte) error {
	d, err := readDocument(raw)
	if err != nil {
		return err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	now := time.Now()
	for _, b := range d.blobs() {
		err := os.Chtimes(r.repoPath(repository, "blobs", hexOf(b)), now, now)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
