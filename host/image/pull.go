package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/layer"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	parallelLayers   = 3 // of one image; enough to keep both network and processor busy
	transferAttempts = 4
	progressInterval = 100 * time.Millisecond
)

// Pull makes the store hold an image and returns it. progress may be nil. It is called by one
// goroutine at a time, at most ten times a second and once at the end with the exact sum of the
// bytes, and must not block. Callers of one organization share the work; a caller whose ctx ends does
// not disturb the others. Errors are those of Resolve.
func (s *Store) Pull(ctx context.Context, who Puller, ref string, progress func(hangar.PullProgress)) (*Image, error) {
	img, result, err := s.findOrPull(ctx, who, ref, progress)
	switch {
	case err == nil:
		s.counts.pull(result)
	case ctx.Err() == nil: // otherwise the caller has given up
		s.counts.pull(pullFailed)
	}
	return img, err
}

// findOrPull is Pull, and also returns how the request was served.
func (s *Store) findOrPull(ctx context.Context, who Puller, ref string, progress func(hangar.PullProgress)) (img *Image, result string, err error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return nil, "", err
	}
	if parsed, err = s.locate(ctx, who, parsed); err != nil {
		return nil, "", err
	}
	if img := s.held(who, parsed, parsed.digest); img != nil {
		return img, pullHeld, nil
	}
	p, img, err := s.plan(ctx, who, parsed)
	if err != nil || img != nil {
		return img, pullHeld, err
	}
	if err := s.opts.Space.Admit(diskspace.PullImage, 0); err != nil {
		return nil, "", err
	}
	if err := s.withinQuota(ctx, who.Org); err != nil {
		return nil, "", err
	}
	_, err = s.images.do(ctx, who.key(p.origin, p.digest), progress, func(ctx context.Context, report func(hangar.PullProgress)) (struct{}, error) {
		return struct{}{}, s.pull(ctx, p, report)
	})
	if err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[p.digest]
	if !ok {
		return nil, "", hangar.Errorf(hangar.CodeUnavailable, "", "image %s was removed while it was pulled", p.ref.text)
	}
	return s.image(r, p.ref.resolved(p.digest, nil)), pullPulled, nil
}

// note records an image, or adds the plan's organization and source to the record of a held one.
func (s *Store) note(p *plan, r *record) error {
	source, _ := s.sourceOf(p.who, p.ref) // cannot fail: open has checked it
	s.mu.Lock()
	defer s.mu.Unlock()
	if held, ok := s.records[p.digest]; ok {
		if slices.Contains(held.Sources, source) {
			return nil
		}
		r.Sources = held.Sources
	}
	r.Sources = withSource(r.Sources, p.who.Org, source)
	return s.write(r)
}

// pull transfers the missing parts of an image and records it. Even for layers that the host holds,
// the source must show that it has them.
func (s *Store) pull(ctx context.Context, p *plan, report func(hangar.PullProgress)) error {
	release, err := s.pulls.take(ctx, p.who.Org)
	if err != nil {
		return err
	}
	defer release()
	whole := ctx
	ctx, cancel := context.WithTimeout(p.who.context(ctx), s.opts.Limits.PullTime)
	defer cancel()
	begun := time.Now()
	unpin := s.pin(p)
	defer unpin()
	progress := newProgress(p.layers, report)
	budget := layer.NewBudget(s.opts.Limits.UnpackedBytes, s.opts.Limits.Files)
	records := make([]layerRecord, len(p.layers))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelLayers)
	for i, l := range p.layers {
		group.Go(func() (err error) {
			records[i], err = s.ensureLayer(groupCtx, p, l, budget, func(done int64) { progress.set(i, min(done, l.size)) })
			return err
		})
	}
	if err := group.Wait(); err != nil {
		switch {
		case whole.Err() != nil:
			return whole.Err()
		case ctx.Err() != nil:
			err = hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "the transfer took longer than %s", s.opts.Limits.PullTime)
		}
		return about("failed to pull image", p.ref, err)
	}
	r, unpinShapes, err := s.stack(p, records)
	defer unpinShapes()
	if err != nil {
		return about("failed to pull image", p.ref, diskspace.Explain(err))
	}
	if err := s.note(p, r); err != nil {
		return about("failed to pull image", p.ref, diskspace.Explain(err))
	}
	progress.finish()
	s.counts.pulled(time.Since(begun))
	s.log.InfoContext(ctx, "image pulled", slog.String("image", r.Ref.String()), slog.Int64("bytes", r.Size),
		slog.Int("layers", len(r.Layers)), slog.Duration("took", time.Since(begun)))
	return nil
}

// stack orders the layers of an image and adds layers that preserve the attributes of directories;
// see layer.Inherit. The caller must call unpin even on an error.
func (s *Store) stack(p *plan, records []layerRecord) (r *record, unpin func(), err error) {
	var pinned []string
	unpin = func() { s.unpin(pinned...) }
	r = &record{Ref: p.ref.resolved(p.digest, p.config.Config.Labels), Config: p.config.Config}
	files := 0
	var dirs []string
	for _, l := range records {
		if r.Size, files = r.Size+l.Bytes, files+l.Files; r.Size > s.opts.Limits.UnpackedBytes || files > s.opts.Limits.Files {
			return nil, unpin, badImage("image %s is larger than %d bytes or %d files", p.ref.text, s.opts.Limits.UnpackedBytes, s.opts.Limits.Files)
		}
		if l.Files == 0 {
			continue
		}
		own := layerName(l.ID)
		shape, err := layer.Inherit(s.layerDir(own), l.Implicit, dirs)
		if err != nil {
			return nil, unpin, fmt.Errorf("layer %s: %w", l.ID, err)
		}
		r.Layers, dirs = append(r.Layers, own), append(dirs, s.layerDir(own))
		if len(shape) == 0 {
			continue
		}
		name, err := s.ensureShape(shape, &pinned)
		if err != nil {
			return nil, unpin, err
		}
		r.Layers, dirs = append(r.Layers, name), append(dirs, s.layerDir(name))
	}
	if len(r.Layers) == 0 {
		name, err := s.ensureShape(nil, &pinned)
		if err != nil {
			return nil, unpin, err
		}
		r.Layers = []string{name}
	}
	r.Layers = topmost(r.Layers)
	return r, unpin, nil
}

// topmost drops all but the highest of equal layers: overlayfs refuses duplicates, and the highest
// one hides the others.
func topmost(names []string) []string {
	seen := map[string]bool{}
	var kept []string
	for _, n := range slices.Backward(names) {
		if !seen[n] {
			seen[n] = true
			kept = append(kept, n)
		}
	}
	slices.Reverse(kept)
	return kept
}

// layerRecord is the file beside an unpacked layer.
type layerRecord struct {
	ID       string   `json:"id"` // digest of the tar stream, or layer.ShapeID
	Bytes    int64    `json:"bytes"`
	Files    int      `json:"files"`
	Implicit []string `json:"implicit,omitempty"`
	// Shown are the blobs that unpack to this layer and were transferred as a whole, the oldest first.
	Shown []shownBlob `json:"shown,omitempty"`
}

// shownBlob is a blob that an origin has shown to possess.
type shownBlob struct {
	Digest string `json:"digest"`
	Origin string `json:"origin"` // see Store.origin
}

// maxShown bounds the recorded blobs of a layer. A forgotten one is transferred again.
const maxShown = 256

// layerName is the directory of a layer. It is short, because the paths of all layers of an image
// must fit in one page as a mount option. The record has the full name.
func layerName(id string) string {
	kind, sum, _ := strings.Cut(id, ":")
	if kind != "sha256" {
		return kind[:1] + sum[:31]
	}
	return sum[:32]
}

// readLayer returns the record of a held layer. found is false if the host does not hold it.
func (s *Store) readLayer(id string) (r layerRecord, found bool, err error) {
	raw, err := os.ReadFile(s.path("layers", layerName(id), "layer.json"))
	if errors.Is(err, os.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("layers %s and %s have the same name", r.ID, id)
	}
	return r, err == nil, err
}

// ensureLayer makes sure that the host holds a layer and that the plan's source has shown it. The
// caller must have pinned the layer. Pulls share the work, but not a refusal: another image may be too
// large, for example, and this one is not.
func (s *Store) ensureLayer(ctx context.Context, p *plan, l plannedLayer, budget *layer.Budget, report func(int64)) (layerRecord, error) {
	for {
		var own atomic.Bool
		r, err := s.layers.do(ctx, p.who.key(p.origin, l.digest, l.diffID), report, func(ctx context.Context, report func(int64)) (layerRecord, error) {
			own.Store(true)
			return again(ctx, s, l.digest, func() (layerRecord, error) { return s.showLayer(ctx, p, l, budget, report) })
		})
		if own.Load() || ctx.Err() != nil || hangar.ReasonOf(err) != hangar.ReasonBadImage {
			return r, err
		}
	}
}

// again repeats the transfer of a layer after temporary errors.
func again(ctx context.Context, s *Store, digest string, transfer func() (layerRecord, error)) (layerRecord, error) {
	for attempt := 1; ; attempt++ {
		r, err := transfer()
		err = diskspace.Explain(err)
		if attempt == transferAttempts || ctx.Err() != nil || hangar.CodeOf(err) != hangar.CodeUnavailable || full(err) {
			return r, err
		}
		s.log.WarnContext(ctx, "transferring a layer again", slog.String("layer", digest), slog.Any("error", err))
		if err := pause.For(ctx, time.Duration(attempt)*s.opts.Limits.RetryPause); err != nil {
			return r, err
		}
	}
}

// showLayer returns a held layer whose blob the source has shown before. Otherwise it transfers the
// blob, to unpack it or to verify that it unpacks to the held layer.
func (s *Store) showLayer(ctx context.Context, p *plan, l plannedLayer, budget *layer.Budget, report func(int64)) (layerRecord, error) {
	r, found, err := s.readLayer(l.diffID)
	if err != nil {
		return r, err
	}
	if !found {
		return s.transfer(ctx, p, l, budget, report)
	}
	if !budget.Take(r.Bytes, r.Files) {
		return r, badImage("image is larger than %d bytes or %d files", s.opts.Limits.UnpackedBytes, s.opts.Limits.Files)
	}
	if slices.Contains(r.Shown, shownBlob{l.digest, p.origin}) && p.source.has(l.digest) {
		s.counts.layer(layerHeld)
		report(l.size)
		return r, nil
	}
	err = s.receive(ctx, p, l, report, func(in io.Reader) error {
		diffID, err := layer.Digest(ctx, in, s.layerLimits(nil))
		return cmp.Or(err, l.check(diffID))
	})
	if err != nil {
		return r, err
	}
	return r, s.noteShown(l, p.origin)
}

func (s *Store) layerLimits(budget *layer.Budget) layer.Limits {
	return layer.Limits{Bytes: s.opts.Limits.UnpackedBytes, Files: s.opts.Limits.Files, Ratio: s.opts.Limits.Ratio, Slack: s.opts.Limits.RatioSlack, Budget: budget, Space: s.opts.Space}
}

// check verifies that a layer unpacks to the DiffID of the config.
func (l plannedLayer) check(diffID string) error {
	if diffID != l.diffID {
		return badImage("layer %s unpacks to %s, not to %s", l.digest, diffID, l.diffID)
	}
	return nil
}

// noteShown records that origin has shown the blob of a held layer.
func (s *Store) noteShown(l plannedLayer, origin string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, found, err := s.readLayer(l.diffID)
	if err != nil || !found || slices.Contains(r.Shown, shownBlob{l.digest, origin}) {
		return err
	}
	r.Shown = append(r.Shown, shownBlob{l.digest, origin})
	r.Shown = r.Shown[max(len(r.Shown)-maxShown, 0):]
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFileVia(s.path("tmp"), s.path("layers", layerName(l.diffID), "layer.json"), raw, 0o600)
}

// receive passes the blob of a layer to use, and verifies that all of it has arrived.
func (s *Store) receive(ctx context.Context, p *plan, l plannedLayer, report func(int64), use func(io.Reader) error) error {
	rc, err := p.source.blob(ctx, l.digest)
	if err != nil {
		return err
	}
	defer func() { _ = rc.Close() }()
	in := &checked{r: rc, hash: sha256.New(), size: l.size, report: report}
	defer func() { s.counts.bytes.Add(float64(in.read)) }()
	err = use(in)
	if err != nil && hangar.ReasonOf(err) != hangar.ReasonBadImage {
		return cmp.Or(in.err, err)
	}
	if errors.Is(err, layer.ErrTooLarge) {
		return err // no need to read the rest
	}
	// The error of a failed transfer takes precedence over that of a bad layer.
	if err := cmp.Or(in.finish(ctx, l.digest), err); err != nil {
		return err
	}
	s.counts.layer(layerTransferred)
	return nil
}

// transfer unpacks a layer while it arrives.
func (s *Store) transfer(ctx context.Context, p *plan, l plannedLayer, budget *layer.Budget, report func(int64)) (layerRecord, error) {
	r, err := s.build(l.diffID, func(dir string) (layerRecord, error) {
		var res layer.Result
		err := s.receive(ctx, p, l, report, func(in io.Reader) (err error) {
			res, err = layer.Unpack(ctx, dir, in, s.layerLimits(budget))
			return cmp.Or(err, l.check(res.DiffID))
		})
		return layerRecord{ID: l.diffID, Bytes: res.Bytes, Files: res.Files, Implicit: res.Implicit, Shown: []shownBlob{{l.digest, p.origin}}}, err
	})
	if err != nil {
		return r, err
	}
	return r, s.noteShown(l, p.origin) // another organization may have been faster
}

// ensureShape makes sure that the layer of a shape exists, and pins it for the caller.
func (s *Store) ensureShape(dirs []layer.Directory, pinned *[]string) (string, error) {
	id := layer.ShapeID(dirs)
	name := layerName(id)
	s.mu.Lock()
	s.pins[name]++
	s.mu.Unlock()
	*pinned = append(*pinned, name)
	if _, found, err := s.readLayer(id); err != nil || found {
		return name, err
	}
	_, err := s.build(id, func(dir string) (layerRecord, error) { return layerRecord{ID: id}, layer.Shape(dir, dirs) })
	return name, err
}

// build makes a layer in a temporary directory and publishes it once it is complete and on disk.
func (s *Store) build(id string, fill func(dir string) (layerRecord, error)) (layerRecord, error) {
	tmp, err := os.MkdirTemp(s.path("tmp"), "layer-*")
	if err != nil {
		return layerRecord{}, err
	}
	defer func() {
		if err := os.RemoveAll(tmp); err != nil {
			s.log.Warn("cannot remove a partial layer, which stays until the next start", slog.String("directory", tmp), slog.Any("error", err))
		}
	}()
	dir := filepath.Join(tmp, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // all users of an image read its root
		return layerRecord{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the same, regardless of the umask
		return layerRecord{}, err
	}
	r, err := fill(dir)
	if err != nil {
		return layerRecord{}, err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return layerRecord{}, err
	}
	if err := os.WriteFile(filepath.Join(tmp, "layer.json"), raw, 0o600); err != nil {
		return layerRecord{}, err
	}
	if err := durable.SyncTree(tmp); err != nil {
		return layerRecord{}, err
	}
	if err := durable.Rename(tmp, s.path("layers", layerName(id))); err != nil {
		if held, found, _ := s.readLayer(id); found { // another pull was faster
			return held, nil
		}
		return layerRecord{}, err
	}
	return r, nil
}

// full reports whether the disk is full, so that retrying within seconds is useless.
func full(err error) bool {
	return hangar.ReasonOf(err) == hangar.ReasonDiskFull
}

// pin protects the layers of a plan from the collector.
func (s *Store) pin(p *plan) (unpin func()) {
	names := make([]string, len(p.layers))
	for i, l := range p.layers {
		names[i] = layerName(l.diffID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		s.pins[n]++
	}
	return func() { s.unpin(names...) }
}

func (s *Store) unpin(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		if s.pins[n]--; s.pins[n] == 0 {
			delete(s.pins, n)
		}
	}
}

// checked hashes and counts the bytes of a transfer.
type checked struct {
	r      io.Reader
	hash   hash.Hash
	size   int64
	read   int64
	report func(int64)
	err    error
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.hash.Write(p[:n])
	c.read += int64(n)
	if c.read > c.size {
		return 0, badImage("layer is larger than its manifest says")
	}
	c.report(c.read)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// finish reads what the archive reader has left, and verifies size and digest.
func (c *checked) finish(ctx context.Context, digest string) error {
	if c.err != nil {
		return c.err
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.read < c.size {
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "layer %s ended after %d of %d bytes", digest, c.read, c.size)
	}
	if got := "sha256:" + hex.EncodeToString(c.hash.Sum(nil)); got != digest {
		return badImage("layer has the digest %s, not %s", got, digest)
	}
	return nil
}

// progress sums up the bytes that have arrived for all layers.
type progress struct {
	report func(hangar.PullProgress)
	total  int64

	mu   sync.Mutex
	done []int64
	sum  int64
	last time.Time
}

func newProgress(layers []plannedLayer, report func(hangar.PullProgress)) *progress {
	p := &progress{report: report, done: make([]int64, len(layers))}
	for _, l := range layers {
		p.total += l.size
	}
	return p
}

func (p *progress) set(i int, done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum += done - p.done[i]
	p.done[i] = done
	now := time.Now()
	if now.Sub(p.last) < progressInterval {
		return
	}
	p.last = now
	phase := "pulling"
	if p.sum == p.total {
		phase = "unpacking"
	}
	p.report(hangar.PullProgress{Phase: phase, Done: p.sum, Total: p.total})
}

func (p *progress) finish() {
	p.report(hangar.PullProgress{Phase: "unpacking", Done: p.total, Total: p.total})
}
