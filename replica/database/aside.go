package database

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Chain describes the transactions that the primary has of a database.
type Chain struct {
	History txlog.History `json:"history"`
	Last    ltx.TXID      `json:"last"`
	// Differs says that the primary has a transaction with the ID of the replica's last one, but another checksum.
	Differs bool `json:"differs,omitempty"`
}

// has reports whether the chain contains the transaction that was committed with an ID in an epoch.
func (c Chain) has(id ltx.TXID, epoch uint64) bool {
	return id <= c.Last && c.History.Epoch(id) == epoch
}

// Mark returns the ID of the last transaction, and the epoch in which it was committed.
func (d *DB) Mark() (epoch uint64, id ltx.TXID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Epoch(), d.pos.TXID
}

// aside saves transactions that a DB has and its primary lacks.
type aside struct{ *DB }

// keep saves what the chain lacks, before the pages of a spool replace the database. It writes LTX
// files. EPOCH-TXID.ltx files have the transactions of the log that are not in the chain.
// EPOCH-TXID-pages-N.ltx files have the present pages, as transactions that lead from the change,
// which is the new content, back to the present content.
func (d aside) keep(s *Spool, c Change, chain Chain) error {
	own := d.log.History()
	id := d.pos.TXID
	lost := id > 0 && (chain.Differs || !chain.has(id, own.Epoch(id)))
	if d.c.Aside == "" || !lost && !d.diverged {
		return nil
	}
	if err := durable.MkdirAll(d.c.Aside, 0o700); err != nil {
		return err
	}
	var files int
	var size int64
	write := func(name string, b []byte) error {
		files++
		size += int64(len(b))
		return durable.WriteFile(filepath.Join(d.c.Aside, name), b, 0o600)
	}
	for id > 0 && !chain.has(id, own.Epoch(id)) {
		id--
	}
	if err := d.transactions(id, write); err != nil {
		return err
	}
	if err := d.pages(s, c, write); err != nil {
		return err
	}
	if d.c.Kept != nil && files > 0 {
		d.c.Kept(files, size)
	}
	return nil
}

// transactions writes the log's transactions after an ID, as far as the log has them.
func (d aside) transactions(after ltx.TXID, write func(string, []byte) error) error {
	r, err := d.log.AfterID(max(after, d.log.Base().TXID))
	if errors.Is(err, txlog.ErrGone) {
		return nil // the pages have the whole content
	}
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, txlog.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		t, err := txlog.DecodeMeta(b)
		if err != nil {
			return err
		}
		if err := write(fmt.Sprintf("%016x-%s.ltx", r.Epoch(), t.MinTXID), b); err != nil {
			return err
		}
	}
}

// pages writes the pages that are about to be replaced or removed.
func (d aside) pages(s *Spool, c Change, write func(string, []byte) error) error {
	if len(d.sums) == 0 {
		return nil
	}
	if c.PageSize != d.pageSize && c.Pages > 0 {
		// A chain has one page size, so the content follows a drop.
		c.Pages, c.Pos = 0, ltx.Pos{TXID: c.Pos.TXID, PostApplyChecksum: ltx.ChecksumFlag}
	}
	for _, f := range []File{Main, WAL} {
		if _, err := d.open(f); err != nil {
			return err
		}
	}
	w := pageWriter{aside: d, spool: s, change: c, write: write, end: c.Pos}
	size := max(uint32(len(d.sums)), c.Pages)
	for i := range d.sums {
		page := uint32(i + 1)
		_, replaced := s.at[page]
		if page == sqlite.LockPage(d.pageSize) || page <= c.Pages && !replaced {
			continue
		}
		p := txlog.Page{Number: page, Data: make([]byte, d.pageSize)}
		if err := recovery(d).rawPage(page, p.Data); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		w.held = append(w.held, p)
		if w.bytes += len(p.Data); w.bytes >= MaxTransaction {
			if err := w.flush(size); err != nil {
				return err
			}
		}
	}
	if len(w.held) == 0 && uint32(len(d.sums)) == c.Pages {
		return nil
	}
	return w.flush(uint32(len(d.sums)))
}

// pageWriter writes pages of a database as transactions that follow a change.
type pageWriter struct {
	aside

	spool  *Spool // of the change
	change Change
	write  func(name string, b []byte) error

	held  []txlog.Page // not written yet
	bytes int          // of held
	files int          // written so far
	end   ltx.Pos      // after the last transaction
}

// flush writes the held pages as one transaction, after which the database has a number of pages.
func (w *pageWriter) flush(size uint32) error {
	id := w.end.TXID + 1
	t := txlog.Tx{
		Header: ltx.Header{
			PageSize: w.pageSize, Commit: size, MinTXID: id, MaxTXID: id, Timestamp: w.now().UnixMilli(), NodeID: w.c.Node,
		},
		Pages: w.held,
	}
	if id > 1 {
		t.PreApplyChecksum = w.end.PostApplyChecksum
	}
	sum := w.end.PostApplyChecksum
	for _, p := range w.held {
		if p.Number <= w.change.Pages {
			sum ^= w.spool.sums[p.Number]
		}
		sum ^= sqlite.PageSum(p.Number, p.Data)
	}
	if size == uint32(len(w.sums)) && size < w.change.Pages {
		sum = sumOf(w.sums)
	}
	t.Post = sum | ltx.ChecksumFlag
	b, err := (&txlog.Encoder{}).Append(nil, &t)
	if err != nil {
		return err
	}
	w.files++
	w.held, w.bytes = nil, 0
	w.end = t.Pos()
	return w.write(fmt.Sprintf("%016x-%s-pages-%d.ltx", w.log.Epoch(), w.pos.TXID, w.files), b)
}
