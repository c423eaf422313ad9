// Package archive keeps snapshots of volumes in a content-addressed, compressed and
// encrypted store, on a disk of the server or in an S3 bucket.
//
// A snapshot is cut into segments of 64 KiB, and each different segment is stored once, for all
// volumes. Unwritten and zero parts take no room. A snapshot that builds on an earlier one of the
// same volume reads only what has changed since, and shares the rest with it; none depends on
// another one, and any may be removed. The store is a kopia repository: with the password, `kopia
// snapshot restore` restores a volume without hangar, as the file "volume".
//
// A snapshot that Write has returned is complete and durable, even after a power loss. One that was
// cut short, by a cancelled context, an error or kill -9, does not exist; Collect frees what it had
// stored. Read checks every segment by its SHA-256 before it writes it, and the whole by the
// snapshot's digest, which does not depend on the store and can be computed from a device alone:
// see Digest. Stored objects are never changed in place, so that Collect may be killed anywhere.
//
// What is lost or damaged in the store is stored again by the next snapshot that has it, after Collect
// has found a file missing or too short, or a reader has found its content damaged. Snapshots that
// share it can then be restored again. An error of the network or the system is no proof of damage.
//
// All methods may be called from any goroutine, between Open and Close. A directory belongs to
// one process at a time, which holds a lock on it; a bucket may be shared by any number of
// daemons that have the same password. Collect never removes what a snapshot needs, even one that
// another process is writing. In a directory it frees the room of removed snapshots at once. In a
// bucket, where other daemons cannot be asked what they are doing, it waits as long as kopia
// considers safe: called every hour, it takes half a day, and content younger than a day is kept.
//
// The archive knows no volumes, devices, retention or schedules. It starts no work by itself.
package archive

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/maintenance"
	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
)

// PasswordSize is how long a password is, in bytes.
const PasswordSize = 32

// The errors of an archive, wrapped.
var (
	// ErrNotFound: there is no such snapshot.
	ErrNotFound = errors.New("no such snapshot in the archive")
	// ErrExists: there is a snapshot with that id.
	ErrExists = errors.New("the archive has that snapshot already")
	// ErrCorrupt: part of a snapshot is missing or damaged; a *CorruptError says which.
	ErrCorrupt = errors.New("snapshot is damaged")
	// ErrPassword: the archive was made with another password.
	ErrPassword = errors.New("wrong password for the archive")
	// ErrForeign: the store is not an archive, or one of a newer format.
	ErrForeign = errors.New("not an archive of snapshots")
	// ErrUnreachable: the server does not answer, or refuses, or the directory cannot be read.
	ErrUnreachable = errors.New("the archive cannot be reached")
	// ErrLocked: another process has the directory open.
	ErrLocked = errors.New("the archive is in use by another process")
)

// Options says where an archive is.
type Options struct {
	// URL is file:///directory or s3://bucket/prefix?endpoint=host:port&region=name&tls=off.
	// The credentials of S3 are those of the environment: AWS_ACCESS_KEY_ID,
	// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
	URL string
	// Cache is a directory of this archive alone, made with mode 0700. It may be lost.
	Cache string
	// Password returns PasswordSize random bytes, always the same. To kopia they are the
	// same in hexadecimal.
	Password func(ctx context.Context) ([]byte, error)
	Log      *slog.Logger
	// Now is the time by which Collect decides; nil: time.Now.
	Now func() time.Time
}

// Archive is a store of snapshots.
type Archive struct {
	opts   Options
	store  *store
	rep    repo.DirectRepository
	end    context.CancelFunc // cancels the context that rep runs with
	shared bool               // other processes may have it open

	// gate is shared by commits of snapshots, and held exclusively by Collect while it decides what
	// is garbage, so that one of the two sees the result of the other.
	gate *semaphore.Weighted // with a capacity of gateAlone

	mu       sync.Mutex
	sessions map[*session]moment // sessions in progress, with their begin

	collecting chan struct{} // holds one element while a Collect runs

	changes atomic.Int64 // by this process, since it merged manifests

	lost sync.Map // of blob.ID: files that are known to be lost or damaged

	// seen is the latest lease of another process, and seenAt when it was first seen; for the Collect
	// that runs.
	seen   leaseRecord
	seenAt time.Time
}

// gateAlone is the weight of an exclusive holder of the gate; a shared one holds 1.
const gateAlone = 1 << 30

// New returns an archive that Open opens.
func New(opts Options) *Archive {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Archive{opts: opts, sessions: map[*session]moment{}, collecting: make(chan struct{}, 1), gate: semaphore.NewWeighted(gateAlone)}
}

// Open opens the archive, and makes it when there is none: in an empty or missing directory, or
// under an unused prefix of a bucket that exists. It answers ErrPassword, ErrForeign,
// ErrUnreachable and ErrLocked; an error in the URL names the parameter.
func (a *Archive) Open(ctx context.Context) (err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	place, err := parse(a.opts.URL)
	if err != nil {
		return err
	}
	password, err := a.opts.Password(ctx)
	if err != nil {
		return fmt.Errorf("password of the archive: %w", err)
	}
	if len(password) != PasswordSize {
		return fmt.Errorf("password of the archive has %d bytes, not %d", len(password), PasswordSize)
	}
	a.shared = place.shared()
	if a.store, err = place.open(ctx); err != nil {
		return fmt.Errorf("open archive %s: %w", place, err)
	}
	a.store.patience = unlisted
	defer func() {
		if err != nil {
			_ = a.store.Close(ctx)
			err = fmt.Errorf("open archive %s: %w", place, err)
		}
	}()
	// The password is random, and as long as the key that the library derives from it.
	phrase := hex.EncodeToString(password)
	if err := a.initialize(ctx, phrase); err != nil {
		return err
	}
	if err := a.connect(ctx, phrase); err != nil {
		return err
	}
	if err := a.adopt(ctx); err != nil {
		_ = a.rep.Close(ctx)
		a.end()
		return err
	}
	return nil
}

// initialize creates the repository. Everything secret or unique in it is derived from the
// password, so that daemons that do so at the same time write the same.
func (a *Archive) initialize(ctx context.Context, phrase string) error {
	switch _, err := a.store.GetMetadata(ctx, format.KopiaRepositoryBlobID); {
	case err == nil:
		return nil
	case !errors.Is(err, blob.ErrBlobNotFound):
		return err
	}
	if made, err := a.store.occupied(ctx); made || err != nil {
		return err
	}
	var keys [3][]byte
	for i, purpose := range []string{"unique id", "HMAC secret", "master key"} {
		var err error
		if keys[i], err = hkdf.Expand(sha256.New, []byte(phrase), "hangar archive: "+purpose, sha256.Size); err != nil {
			return err
		}
	}
	// All other settings are the library's defaults for new repositories.
	err := repo.Initialize(ctx, blank{a.store}, &repo.NewRepositoryOptions{
		UniqueID: keys[0],
		BlockFormat: format.ContentFormat{
			HMACSecret: keys[1], MasterKey: keys[2],
			Hash:              "BLAKE3-256-128", // half the time of BLAKE2, the library's default
			MutableParameters: format.MutableParameters{MaxPackSize: packSize},
		},
		ObjectFormat:                      format.ObjectFormat{Splitter: splitter},
		FormatBlockKeyDerivationAlgorithm: keyDerivation,
	}, phrase)
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	if a.shared {
		return nil
	}
	return a.store.synced()
}

// connect opens the existing repository. The library reads its settings from a file. The file has
// no secret, because the store itself travels in the context.
func (a *Archive) connect(ctx context.Context, phrase string) (err error) {
	cache, err := filepath.Abs(a.opts.Cache)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	settings, err := json.Marshal(repo.LocalConfig{
		Storage: &blob.ConnectionInfo{Type: storageType, Config: struct{}{}},
		// Nothing is cached on disk: a restore must read the store itself. The index is in memory,
		// some 35 bytes for each segment: 570 MB per TB stored.
		Caching: new(content.CachingOptions),
		ClientOptions: repo.ClientOptions{
			Hostname: owner, Username: owner, Description: owner,
			FormatBlobCacheDuration: -1, // no cache: the store itself must verify the password
		},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(cache, "settings.json")
	if err := durable.WriteFile(file, settings, 0o600); err != nil {
		return err
	}
	registerStorage()
	lifetime, end := finish.Lifetime(ctx)
	opening := context.AfterFunc(ctx, end)
	var rep repo.Repository
	defer func() {
		if !opening() {
			err = errors.Join(err, ctx.Err())
		}
		if err == nil {
			return
		}
		if rep != nil {
			_ = rep.Close(lifetime)
		}
		end()
	}()
	rep, err = repo.Open(withStore(lifetime, a.store), file, phrase, &repo.Options{
		TimeNowFunc:          a.opts.Now,
		DisableRepositoryLog: true,
		DoNotWaitForUpgrade:  true,
		OnFatalError: func(err error) {
			a.opts.Log.Error("The archive has a format that this version does not know.", "error", err)
		},
	})
	switch direct, ok := rep.(repo.DirectRepository); {
	case errors.Is(err, repo.ErrInvalidPassword):
		return ErrPassword
	case errors.Is(err, ErrUnreachable), err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case !ok:
		return fmt.Errorf("%w: %T", ErrForeign, rep)
	default:
		a.rep, a.end = direct, end
		return nil
	}
}

// owner is hangar's name in the library.
const owner = "hangar"

// adopt makes hangar the owner of the repository's maintenance, so that a kopia client that a user
// points at it does not run it.
func (a *Archive) adopt(ctx context.Context) error {
	switch has, err := maintenance.HasParams(ctx, a.rep); {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case has:
		return nil
	}
	s, err := a.begin(ctx, "adopt")
	if err != nil {
		return err
	}
	defer s.end()
	if err := maintenance.SetParams(ctx, s.w, &maintenance.Params{Owner: owner + "@" + owner}); err != nil {
		return err
	}
	return s.w.Flush(ctx)
}

// Close closes the archive. No other call may be in progress.
func (a *Archive) Close() error {
	if a.rep == nil {
		return nil
	}
	defer a.end()
	// Close only closes files and connections, so it needs no bound.
	return a.rep.Close(a.logged(context.Background())) //nolint:forbidigo // see above
}

// moment is a time by the monotonic clock and by the one that may be set.
type moment struct{ at, wall time.Time }

// sessionClosing bounds the end of a session.
const sessionClosing = time.Minute

// session is one writer of the archive.
type session struct {
	a        *Archive
	w        repo.DirectRepositoryWriter
	uploaded atomic.Int64 // bytes
	release  func()

	replacing sync.Mutex // held while content of a lost file is replaced
}

// begin starts a session; the caller ends it. Unflushed writes are lost.
func (a *Archive) begin(ctx context.Context, purpose string) (*session, error) {
	s := &session{a: a}
	_, w, err := a.rep.NewDirectWriter(ctx, repo.WriteSessionOptions{
		Purpose: purpose, OnUpload: func(n int64) { s.uploaded.Add(n) },
	})
	if err != nil {
		return nil, err
	}
	s.w = w
	s.release = func() {
		closing, cancel := finish.Within(ctx, sessionClosing)
		defer cancel()
		if err := w.Close(closing); err != nil {
			a.opts.Log.WarnContext(ctx, "A session with the archive did not end.", "error", err)
		}
	}
	// Registered under the gate, so that Collect does not take the session for a dead one.
	if err := a.gate.Acquire(ctx, 1); err != nil {
		s.release()
		return nil, err
	}
	defer a.gate.Release(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[s] = moment{time.Now(), a.opts.Now().Round(0)}
	return s, nil
}

func (s *session) end() {
	s.release()
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	delete(s.a.sessions, s)
}
