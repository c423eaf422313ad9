package storaged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
)

// maxMarks bounds the cuts for which changes are counted. The newest are kept.
const maxMarks = 3

// granularity of counted changes, in bytes.
const granularity = 64 << 10

// Kinds of bitmaps of the image. A "since" bitmap records every write after a cut. While a view is
// shown, each "since" bitmap has an "until" copy from the time of the view. The number in the name
// grows with each cut.
const (
	bitmapSince = "since"
	bitmapUntil = "until"
)

type bitmap struct {
	kind string
	seq  uint64
	mark string
}

func (b bitmap) name() string { return fmt.Sprintf("%s-%d-%s", b.kind, b.seq, b.mark) }

func parseBitmap(name string) (bitmap, bool) {
	var b bitmap
	kind, rest, _ := strings.Cut(name, "-")
	number, mark, ok := strings.Cut(rest, "-")
	if _, err := fmt.Sscan(number, &b.seq); err != nil || !ok {
		return b, false
	}
	b.kind, b.mark = kind, mark
	return b, kind == bitmapSince || kind == bitmapUntil
}

// bitmaps returns the bitmaps of a kind, oldest first.
func (d *Daemon) bitmaps(ctx context.Context, kind string) ([]bitmap, error) {
	var nodes []struct {
		Name    string `json:"node-name"`
		Bitmaps []struct {
			Name string `json:"name"`
		} `json:"dirty-bitmaps"`
	}
	if err := d.qmp.do(ctx, "query-named-block-nodes", args{"flat": true}, &nodes); err != nil {
		return nil, err
	}
	var found []bitmap
	for _, node := range nodes {
		for _, bm := range node.Bitmaps {
			if b, ok := parseBitmap(bm.Name); ok && b.kind == kind {
				found = append(found, b)
			}
		}
	}
	slices.SortFunc(found, func(a, b bitmap) int { return int(a.seq) - int(b.seq) })
	return found, nil
}

// transaction changes several bitmaps atomically.
type transaction []args

func (t *transaction) add(kind, node string, data args) {
	data["node"] = node
	*t = append(*t, args{"type": kind, "data": data})
}

func (t transaction) commit(ctx context.Context, q *qmp) error {
	if len(t) == 0 {
		return nil
	}
	return q.do(ctx, "transaction", args{"actions": t}, nil)
}

// Mark starts to count changes for a mark, beside those for earlier ones.
func (d *Daemon) Mark(ctx context.Context, mark string) error {
	since, err := d.bitmaps(ctx, bitmapSince)
	if err != nil {
		return err
	}
	var t transaction
	t.begin(mark, since)
	return t.commit(ctx, d.qmp)
}

func (t *transaction) begin(mark string, since []bitmap) {
	next := bitmap{kind: bitmapSince, mark: mark, seq: 1}
	if n := len(since); n > 0 {
		next.seq = since[n-1].seq + 1
	}
	t.add("block-dirty-bitmap-add", nodeDisk, args{"name": next.name(), "granularity": granularity})
}

// Plan is a prepared cut. New counts begin before the cut and old ones are copied after it, so that
// concurrent writes are not missed.
type Plan struct {
	begin, copies, forget transaction
	until                 []string
}

// Prepare does the work that is possible before a cut. From then on changes are counted for mark,
// unless it is empty. cow is the file for overwritten blocks; Prepare makes it sparse and as large as
// the image.
func (d *Daemon) Prepare(ctx context.Context, mark, cow string) (*Plan, error) {
	since, err := d.bitmaps(ctx, bitmapSince)
	if err != nil {
		return nil, err
	}
	p := &Plan{until: []string{}}
	p.copy(since)
	if mark != "" {
		p.begin.begin(mark, since)
		for _, old := range since[:max(0, len(since)+1-maxMarks)] {
			p.forget.add("block-dirty-bitmap-remove", nodeDisk, args{"name": old.name()})
		}
	}
	fi, err := os.Stat(d.spec.Image)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(cow, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(fi.Size()), f.Close()); err != nil {
		return nil, err
	}
	err = d.qmp.do(ctx, "blockdev-add", args{"driver": "file", "node-name": nodeCow, "filename": cow}, nil)
	return p, err
}

// copy adds frozen copies of bitmaps, on the exported node, to the plan.
func (p *Plan) copy(since []bitmap) {
	for _, b := range since {
		until := b
		until.kind = bitmapUntil
		p.copies.add("block-dirty-bitmap-add", nodeAccess, args{"name": until.name(), "disabled": true, "granularity": granularity})
		p.copies = append(p.copies, args{"type": "block-dirty-bitmap-merge", "data": args{
			"node": nodeAccess, "target": until.name(), "bitmaps": []args{{"node": nodeDisk, "name": b.name()}},
		}})
		p.until = append(p.until, until.name())
	}
}

// Cut takes the view.
func (d *Daemon) Cut(ctx context.Context, p *Plan) error {
	if err := p.begin.commit(ctx, d.qmp); err != nil {
		return err
	}
	err := d.qmp.do(ctx, "blockdev-add", args{
		"driver": "copy-before-write", "node-name": nodeFilter, "file": nodeDisk, "target": nodeCow,
		"on-cbw-error": "break-snapshot",
	}, nil)
	if err != nil {
		return err
	}
	return d.reopen(ctx, nodeFilter)
}

// reopen puts the content node on top of another node.
func (d *Daemon) reopen(ctx context.Context, file string) error {
	options := args{"driver": "raw", "node-name": nodePlain, "file": file, "discard": "unmap"}
	if d.spec.Secret != nil {
		options["driver"], options["key-secret"] = "luks", secretID
	}
	return d.qmp.do(ctx, "blockdev-reopen", args{"options": []args{options}}, nil)
}

// Show exports the view by NBD: the image at the cut, in ciphertext. QEMU 7.2 could also decrypt it,
// but then it sometimes shows later writes.
func (d *Daemon) Show(ctx context.Context, p *Plan) error {
	access := args{"driver": "snapshot-access", "node-name": nodeAccess, "file": nodeFilter}
	if err := d.qmp.do(ctx, "blockdev-add", access, nil); err != nil {
		return err
	}
	if err := p.copies.commit(ctx, d.qmp); err != nil {
		return err
	}
	err := d.qmp.do(ctx, "block-export-add", args{
		"type": "nbd", "id": ExportImage, "name": ExportImage, "node-name": nodeAccess, "bitmaps": p.until,
	}, nil)
	if err != nil {
		return err
	}
	return p.forget.commit(ctx, d.qmp)
}

// Counts reports whether changes are counted for any mark.
func (d *Daemon) Counts(ctx context.Context) (bool, error) {
	since, err := d.bitmaps(ctx, bitmapSince)
	return len(since) > 0, err
}

// Marks returns the marks for which changes are counted and exported by Show, oldest first, each with
// the name of its bitmap.
func (d *Daemon) Marks(ctx context.Context) (marks, bitmaps []string, err error) {
	until, err := d.bitmaps(ctx, bitmapUntil)
	for _, b := range until {
		marks, bitmaps = append(marks, b.mark), append(bitmaps, b.name())
	}
	return marks, bitmaps, err
}

// Drop ends a view, in any state, and removes everything that was made for it, including cow. It may
// be repeated.
func (d *Daemon) Drop(ctx finish.Context, cow string) error {
	var errs []error
	errs = append(errs, d.qmp.unexport(ctx, ExportImage), d.remove(ctx, nodeAccess), d.reopen(ctx, nodeDisk),
		d.remove(ctx, nodeFilter), d.remove(ctx, nodeCow))
	return errors.Join(append(errs, durable.Remove(cow))...)
}

func (d *Daemon) remove(ctx context.Context, node string) error {
	err := d.qmp.do(ctx, "blockdev-del", args{"node-name": node}, nil)
	if isAbsent(err) {
		return nil
	}
	return err
}
