// Package image holds the images of a host: it resolves references, pulls what
// they name from OCI registries, and unpacks every layer once into a directory
// that overlayfs takes as a lower directory.
//
// The digest that its reference resolves to identifies an image. Images and layers become visible
// when they are complete and on disk; Open removes the partial ones of a crash. Every manifest,
// config and layer is checked against its digest, and a hostile or damaged one is refused with
// hangar.ReasonBadImage. An image that is pinned by a digest needs no network if the host holds it
// and has pulled it for the same organization from that repository before. The built-in registry
// shares the directory: an image pushed to it is unpacked from its blobs without a second copy over
// the network, and one pushed to another host is streamed from there.
//
// Tenants share unpacked layers, and nothing else. An organization gets a layer that the host holds
// only after the registry that it pulls from has sent the layer's whole blob, now or before; a config
// that names the layer is no proof. Pulls in progress, their errors and the slots that bound them
// belong to one organization. Registries are reached through a publicdial.Dialer, with a minimum rate
// and a deadline, and errors contain no text from their answers.
//
// Methods may be called from many goroutines. Concurrent callers of one organization for the same
// image or layer share one pull, which ends when no caller waits for it any more. The collector does
// not remove what is being pulled or what InUse names.
//
// The package runs and mounts nothing. A puller may use the repositories of its organization in the
// built-in registry.
package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// The defaults of Limits.
const (
	DefaultUnpackedBytes = 32 << 30
	DefaultFiles         = 1 << 20
	DefaultLayers        = 200
	DefaultRatio         = 100
	DefaultRatioSlack    = 256 << 20
	DefaultManifestBytes = registry.DefaultManifestBytes
	DefaultBlobBytes     = registry.DefaultBlobBytes
	DefaultMinRate       = registry.DefaultMinRate
	DefaultRateWindow    = 20 * time.Second
	DefaultPullTime      = 30 * time.Minute
	DefaultResolveTime   = time.Minute
	DefaultRetryPause    = time.Second
	DefaultOrgPulls      = 4
	DefaultUsageAge      = 5 * time.Second
	DefaultOrgResolves   = 16
)

// ErrNotFound means that the host does not hold the image.
var ErrNotFound = errors.New("image not found")

// Limits bound the size of one image, one transfer and one organization. Zero means the default.
type Limits struct {
	UnpackedBytes int64 // of all layers
	Files         int   // of all layers
	Layers        int
	// Ratio is how many times its compressed size a layer may unpack to, beyond RatioSlack bytes.
	Ratio         int
	RatioSlack    int64
	ManifestBytes int64 // of a manifest or index; a config has at most maxConfigBytes, too
	BlobBytes     int64 // of one layer as it is transferred

	// MinRate is the minimum rate, in bytes a second, of transfers and of clients that read from the
	// built-in registry. It is averaged over each RateWindow of waiting.
	MinRate    int
	RateWindow time.Duration
	// PullTime bounds the pull of an image, ResolveTime the requests for its manifests.
	PullTime    time.Duration
	ResolveTime time.Duration
	// RetryPause is the pause before a broken transfer is repeated; it grows with each attempt.
	RetryPause time.Duration
	// OrgPulls bounds the concurrent pulls of one organization, and OrgResolves its concurrent
	// resolutions; others wait.
	OrgPulls    int
	OrgResolves int
	// UsageAge is the maximum age of a measured usage in quota checks, see Options.Quota.
	UsageAge time.Duration
}

// Options of a Store.
type Options struct {
	Dir      string // the store's own; Open makes it
	Log      *slog.Logger
	Platform v1.Platform // zero: linux on the architecture of this program
	// Local are the names, host or host:port, under which clients reach the built-in registry.
	// References to them are resolved in this process. A name without a port matches every port.
	Local []string
	// Dialer connects to registries; nil: one without exceptions.
	Dialer *publicdial.Dialer
	// Transport, if not nil, makes the requests to registries instead of Dialer.
	Transport http.RoundTripper
	// DockerConfig is the path of a Docker client's config.json. Its credentials serve the pulls of
	// all organizations if Credentials has none. It may be empty, and the file may be missing.
	DockerConfig string
	// Credentials is the platform's own store; optional. The registry has the name that ImageRef gives
	// it.
	Credentials func(ctx context.Context, registry string) (user, password string, ok bool)
	// InUse returns the digests of images that Machines use; optional. A Machine
	// must be in it before its image is pulled.
	InUse func() map[string]bool
	// Quota returns an error for an organization that uses so many bytes (see Usage) and may not use
	// more; nil: no limit.
	Quota  func(ctx context.Context, org hangar.OrgID, used int64) error
	Limits Limits
	Space  *diskspace.Space // of the disk that Dir is on; nil: its free space is not checked
	// Catalog is the shared catalog of all hosts' built-in registries, Peers are those of other
	// hosts, and Host is this one. Nil: this host shares its registry with no other.
	Catalog hangar.ImageCatalog
	Peers   hangar.PushedReaders
	Host    hangar.HostID
}

// Image is a held image, ready to run.
type Image struct {
	Ref    hangar.ImageRef
	Config v1.Config
	// Layers are unpacked directories, lowest first, at least one, and all different.
	Layers []string
	Size   int64 // bytes unpacked
}

// Store holds the images of a host.
type Store struct {
	opts     Options
	log      *slog.Logger
	registry *registry.Registry
	client   http.RoundTripper

	images   flights[struct{}, hangar.PullProgress]
	layers   flights[layerRecord, int64]
	pulls    slots
	resolves slots
	counts   counts

	measuring singleflight.Group // of usages, by organization

	mu      sync.Mutex
	usages  map[hangar.OrgID]measured // at most Limits.UsageAge old when last checked
	records map[string]*record        // by digest
	unread  map[string]bool           // files of records that could not be read
	pins    map[string]int            // layers, by name, that pulls in progress rely on
}

// New returns a Store that Open makes usable.
func New(opts Options) *Store {
	opts.Platform.OS = cmp.Or(opts.Platform.OS, "linux")
	opts.Platform.Architecture = cmp.Or(opts.Platform.Architecture, runtime.GOARCH)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	l := &opts.Limits
	l.UnpackedBytes = cmp.Or(l.UnpackedBytes, DefaultUnpackedBytes)
	l.Files = cmp.Or(l.Files, DefaultFiles)
	l.Layers = cmp.Or(l.Layers, DefaultLayers)
	l.ManifestBytes = cmp.Or(l.ManifestBytes, DefaultManifestBytes)
	l.BlobBytes = cmp.Or(l.BlobBytes, DefaultBlobBytes)
	l.Ratio = cmp.Or(l.Ratio, DefaultRatio)
	l.RatioSlack = cmp.Or(l.RatioSlack, DefaultRatioSlack)
	l.MinRate = cmp.Or(l.MinRate, DefaultMinRate)
	l.RateWindow = cmp.Or(l.RateWindow, DefaultRateWindow)
	l.PullTime = cmp.Or(l.PullTime, DefaultPullTime)
	l.ResolveTime = cmp.Or(l.ResolveTime, DefaultResolveTime)
	l.RetryPause = cmp.Or(l.RetryPause, DefaultRetryPause)
	l.UsageAge = cmp.Or(l.UsageAge, DefaultUsageAge)
	l.OrgPulls = cmp.Or(l.OrgPulls, DefaultOrgPulls)
	l.OrgResolves = cmp.Or(l.OrgResolves, DefaultOrgResolves)
	if opts.Dialer == nil {
		opts.Dialer = publicdial.New(publicdial.Options{})
	}
	if opts.Transport == nil {
		opts.Transport = opts.Dialer.Transport()
	}
	s := &Store{
		opts: opts, usages: map[hangar.OrgID]measured{}, log: opts.Log, client: opts.Transport, records: map[string]*record{}, pins: map[string]int{},
		pulls: slots{each: int64(l.OrgPulls)}, resolves: slots{each: int64(l.OrgResolves)},
		counts: newCounts(),
	}
	s.registry = registry.New(registry.Options{
		Dir: filepath.Join(opts.Dir, "registry"), Log: opts.Log, ManifestBytes: l.ManifestBytes, BlobBytes: l.BlobBytes, MinRate: l.MinRate, Space: opts.Space,
		Quota: s.withinQuota, Catalog: opts.Catalog, Peers: opts.Peers, Host: opts.Host, RateWindow: l.RateWindow,
	})
	return s
}

// Open makes the directory, removes the partial files of a crash and reads the held images. An
// image whose record or layers cannot be read is logged and is not held; see reread.
func (s *Store) Open(ctx context.Context) error {
	if err := os.RemoveAll(s.path("tmp")); err != nil {
		return err
	}
	for _, d := range []string{"tmp", "layers", "images"} {
		if err := durable.MkdirAll(s.path(d), 0o700); err != nil {
			return err
		}
	}
	if err := s.registry.Open(ctx); err != nil {
		return fmt.Errorf("open registry: %w", err)
	}
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return err
	}
	records, unread := map[string]*record{}, map[string]bool{}
	for _, e := range entries {
		r, err := s.readRecord(e.Name())
		if err != nil {
			s.log.WarnContext(ctx, "image cannot be read", slog.String("file", e.Name()), slog.Any("error", err))
			unread[e.Name()] = true
			continue
		}
		records[r.Ref.Digest] = r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.unread = records, unread
	return ctx.Err()
}

// Close ends the pulls in progress and returns when no goroutine of the store runs any more.
func (s *Store) Close() error {
	s.images.close()
	s.layers.close()
	(&http.Client{Transport: s.client}).CloseIdleConnections()
	return nil
}

// Registry returns the handler of the built-in registry, for the paths under /v2/.
func (s *Store) Registry(access registry.Access) http.Handler {
	return s.registry.Handler(access)
}

// Pushed returns the built-in registry. Its Publish must be called before the first push; other hosts
// read it as a hangar.PushedReader.
func (s *Store) Pushed() *registry.Registry { return s.registry }

// Get returns a held image by its digest, or ErrNotFound. It is for Machines whose image was pulled
// for them: a digest alone gives no access to an image.
func (s *Store) Get(digest string) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[digest]
	if !ok {
		return nil, missing(digest)
	}
	s.touch(r)
	return s.image(r, r.Ref), nil
}

// Holds reports whether the host holds the image that a reference names, or has named when it was
// pulled.
func (s *Store) Holds(ref string) bool {
	want, err := parseReference(ref)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want.digest != "" {
		_, held := s.records[want.digest]
		return held
	}
	for _, r := range s.records {
		if r.Ref.Tag == want.tag && r.Ref.Repository == want.repository.RepositoryStr() && r.Ref.Registry == want.registryName() {
			return true
		}
	}
	return false
}

// List returns the held images, sorted by reference.
func (s *Store) List() ([]hangar.Image, error) {
	used := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]hangar.Image, 0, len(s.records))
	for digest, r := range s.records {
		list = append(list, hangar.Image{Ref: r.Ref, SizeBytes: r.Size, InUse: used[digest], LastUsed: r.lastUsed})
	}
	slices.SortFunc(list, func(a, b hangar.Image) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return list, nil
}

// Remove frees an image and the layers that no other image has. It returns ErrNotFound, and
// hangar.CodeFailedPrecondition while a Machine uses the image.
func (s *Store) Remove(ctx context.Context, digest string) error {
	s.mu.Lock()
	r, ok := s.records[digest]
	if !ok {
		s.mu.Unlock()
		return missing(digest)
	}
	seen := candidate{digest, r.lastUsed}
	s.mu.Unlock()
	dropped, err := s.evict(seen)
	if err != nil {
		return err
	}
	if !dropped {
		return hangar.Errorf(hangar.CodeFailedPrecondition, "image_in_use", "image %s is used by a Machine", r.Ref)
	}
	_, err = s.sweep(ctx)
	return err
}

func missing(digest string) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "%w: %s", ErrNotFound, digest)
}

func (s *Store) inUse() map[string]bool {
	if s.opts.InUse == nil {
		return nil
	}
	return s.opts.InUse()
}

// record is an image's entry on disk. The modification time of its file is the time of last use.
type record struct {
	Ref     hangar.ImageRef `json:"ref"`
	Sources []string        `json:"sources"` // who has pulled it and from where, see Store.sourceOf
	Config  v1.Config       `json:"config"`
	Layers  []string        `json:"layers"` // names of directories in layers, lowest first
	Size    int64           `json:"size"`

	configSize int64 // of Config, which stays in memory, in bytes of JSON
	lastUsed   time.Time
	noted      time.Time // lastUsed in the file
}

func (s *Store) readRecord(file string) (*record, error) {
	name := s.path("images", file)
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	r := &record{lastUsed: fi.ModTime(), noted: fi.ModTime()}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, err
	}
	if recordFile(r.Ref.Digest) != file || len(r.Layers) == 0 {
		return nil, errors.New("record is damaged")
	}
	if err := r.weigh(); err != nil {
		return nil, err
	}
	for _, l := range r.Layers {
		if !filepath.IsLocal(l) {
			return nil, errors.New("record is damaged")
		}
		if _, err := os.Stat(s.layerDir(l)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// weigh sets configSize.
func (r *record) weigh() error {
	config, err := json.Marshal(r.Config)
	r.configSize = int64(len(config))
	return err
}

// write writes a record durably; the caller holds mu.
func (s *Store) write(r *record) error {
	if err := r.weigh(); err != nil {
		return err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := durable.WriteFileVia(s.path("tmp"), s.path("images", recordFile(r.Ref.Digest)), raw, 0o600); err != nil {
		return err
	}
	r.lastUsed = time.Now()
	r.noted = r.lastUsed
	s.records[r.Ref.Digest] = r
	delete(s.unread, recordFile(r.Ref.Digest))
	return nil
}

// touch updates an image's time of use; the caller holds mu. A crash may lose the update.
func (s *Store) touch(r *record) {
	now := time.Now()
	noted := now.Sub(r.noted) < time.Minute
	r.lastUsed = now
	if noted {
		return
	}
	r.noted = now
	if err := os.Chtimes(s.path("images", recordFile(r.Ref.Digest)), now, now); err != nil {
		s.log.Warn("cannot record the time of use of an image", slog.String("image", r.Ref.String()), slog.Any("error", err))
	}
}

// drop removes the record of an image; the caller holds mu. The next sweep removes its layers.
func (s *Store) drop(r *record) error {
	err := os.Remove(s.path("images", recordFile(r.Ref.Digest)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.records, r.Ref.Digest)
	return durable.SyncDir(s.path("images"))
}

func (s *Store) image(r *record, ref hangar.ImageRef) *Image {
	img := &Image{Ref: ref, Config: *r.Config.DeepCopy(), Size: r.Size}
	img.Ref.Labels = img.Config.Labels
	for _, l := range r.Layers {
		img.Layers = append(img.Layers, s.layerDir(l))
	}
	return img
}

func recordFile(digest string) string { return strings.TrimPrefix(digest, "sha256:") + ".json" }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.opts.Dir}, elem...)...)
}

func (s *Store) layerDir(name string) string { return s.path("layers", name, "fs") }
