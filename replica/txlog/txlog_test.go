package txlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// next returns a transaction of some pages after a position.
func next(pos ltx.Pos, rng *rand.Rand) *txlog.Tx {
	t := &txlog.Tx{Header: ltx.Header{
		Version: ltx.Version, PageSize: 512, Commit: 5, MinTXID: pos.TXID + 1, MaxTXID: pos.TXID + 1, Timestamp: 12345,
	}}
	if t.MinTXID > 1 {
		t.PreApplyChecksum = pos.PostApplyChecksum
	}
	sum := ltx.Checksum(0)
	for page := uint32(1); page <= 5; page++ {
		data := make([]byte, 512)
		for i := range data {
			data[i] = byte(rng.IntN(4))
		}
		t.Pages = append(t.Pages, txlog.Page{Number: page, Data: data})
		sum ^= sqlite.PageSum(page, data)
	}
	t.Post = sum | ltx.ChecksumFlag
	return t
}

// TestEncodingIsLTX decodes an Encoder's output with the LTX library, and the library's output with
// Decode.
func TestEncodingIsLTX(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var e txlog.Encoder
	want := next(ltx.Pos{}, rng)
	b, err := e.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	decoder := ltx.NewDecoder(bytes.NewReader(b))
	if err := decoder.Verify(); err != nil {
		t.Fatal("the library: ", err)
	}
	if decoder.Trailer().PostApplyChecksum != want.Post || decoder.Header() != want.Header {
		t.Errorf("%+v %+v", decoder.Header(), decoder.Trailer())
	}
	var file bytes.Buffer
	encoder, err := ltx.NewEncoder(&file)
	if err != nil {
		t.Fatal(err)
	}
	if err := encoder.EncodeHeader(want.Header); err != nil {
		t.Fatal(err)
	}
	for _, p := range want.Pages {
		if err := encoder.EncodePage(ltx.PageHeader{Pgno: p.Number}, p.Data); err != nil {
			t.Fatal(err)
		}
	}
	encoder.SetPostApplyChecksum(want.Post)
	if err := encoder.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, file.Bytes()) {
		t.Error("the library writes other bytes")
	}
	got, err := txlog.Decode(file.Bytes())
	if err != nil || len(got.Pages) != 5 || got.Post != want.Post || !bytes.Equal(got.Pages[4].Data, want.Pages[4].Data) {
		t.Errorf("%+v %v", got, err)
	}
}

func fill(t *testing.T, l *txlog.Log, n int) [][]byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(l.Pos().TXID)))
	var e txlog.Encoder
	var all [][]byte
	for range n {
		tx := next(l.Pos(), rng)
		b, err := e.Append(nil, tx)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Append(tx, b, 1, time.Now(), false); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func read(t *testing.T, l *txlog.Log, after ltx.Pos) [][]byte {
	t.Helper()
	r, err := l.After(after)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all [][]byte
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
}

// TestTornTail cuts and damages a log in many places of its last two records. Open always finds a
// complete prefix, and the log continues after it.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	l, err := txlog.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := fill(t, l, 6)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "0000000000000001.seg")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	tail := len(all[5]) + len(all[4]) + 16
	for cut := len(whole) - tail; cut <= len(whole); cut += 41 {
		for _, damage := range []bool{false, true} {
			b := bytes.Clone(whole)
			if damage && cut < len(whole) {
				b[cut] ^= 0x40
			} else {
				b = b[:cut]
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := txlog.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			got := read(t, l, l.Base())
			if len(got) < 4 || len(got) > 6 || int(l.Pos().TXID) != len(got) || cut == len(whole) && len(got) != 6 {
				t.Fatalf("cut at %d of %d: %d records, at %s", cut, len(whole), len(got), l.Pos())
			}
			for i := range got {
				if !bytes.Equal(got[i], all[i]) {
					t.Fatalf("record %d differs", i)
				}
			}
			fill(t, l, 1)
			if n := len(read(t, l, l.Base())); n != len(got)+1 {
				t.Fatalf("%d records after one more than %d", n, len(got))
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnreadable: a segment, or the history, that cannot be read at this moment makes Open fail. Nothing is removed, unlike with a
// segment whose header is damaged.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	l, err := txlog.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(4, 4))
	var e txlog.Encoder
	for epoch := range uint64(3) { // each begins a segment
		tx := next(l.Pos(), rng)
		b, err := e.Append(nil, tx)
		if err == nil {
			err = l.Append(tx, b, epoch, time.Now(), false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	history := l.History()
	for _, base := range []string{"0000000000000001.seg", "0000000000000002.seg", "0000000000000003.seg", "history"} {
		name := filepath.Join(dir, base)
		aside := filepath.Join(t.TempDir(), "segment")
		if err := errors.Join(os.Rename(name, aside), os.Mkdir(name, 0o700)); err != nil {
			t.Fatal(err)
		}
		if l, err := txlog.Open(dir); err == nil {
			t.Error("opened at ", l.Pos(), l.Close())
		}
		if err := errors.Join(os.RemoveAll(name), os.Rename(aside, name)); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = txlog.Open(dir); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, l, l.Base())); n != 3 || !slices.Equal(l.History(), history) {
		t.Errorf("%d records, epochs %v, want %v", n, l.History(), history)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(dir, "0000000000000002.seg")
	for _, damage := range []func() error{
		func() error { return os.Truncate(second, 39) },
		func() error { return os.WriteFile(second, make([]byte, 99), 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		l, err := txlog.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if l.Pos().TXID != 1 {
			t.Error("after damage, the log is at ", l.Pos())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// block makes a file that a log is about to write impossible to write, as a full disk does. The returned
// function undoes that.
func block(t *testing.T, path string) func() {
	t.Helper()
	saved, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		err := os.RemoveAll(path)
		if saved != nil {
			err = errors.Join(err, os.WriteFile(path, saved, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSegmentNotWritten: a new segment cannot be written, for another epoch and after a Reset. The log keeps
// its position, and continues once there is room.
func TestSegmentNotWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var e txlog.Encoder
	for _, records := range []int{0, 3} {
		dir := t.TempDir()
		l, err := txlog.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, l, records)
		at := l.Pos()
		tx := next(at, rng)
		b, err := e.Append(nil, tx)
		if err != nil {
			t.Fatal(err)
		}
		unblock := block(t, filepath.Join(dir, fmt.Sprintf("%016x.seg", uint64(at.TXID)+1)))
		if err := l.Append(tx, b, 2, time.Now(), true); err == nil || l.Pos() != at || len(read(t, l, l.Base())) != records {
			t.Errorf("append: %v, the log is at %s, was at %s", err, l.Pos(), at)
		}
		unblock()
		unblock = block(t, filepath.Join(dir, "0000000000000065.seg"))
		if err := l.Reset(ltx.Pos{TXID: 100, PostApplyChecksum: ltx.ChecksumFlag | 1}, 2); err == nil || l.Pos() != at || l.Base() != at {
			t.Errorf("reset: %v, the log is at %s after %s, was at %s", err, l.Pos(), l.Base(), at)
		}
		unblock()
		if err := errors.Join(l.Sync(), l.Append(tx, b, 2, time.Now(), true), l.Close()); err != nil {
			t.Fatal(err)
		}
		if l, err = txlog.Open(dir); err != nil {
			t.Fatal(err)
		}
		if got := read(t, l, at); l.Pos() != tx.Pos() || len(got) != 1 || !bytes.Equal(got[0], b) {
			t.Errorf("%d records after %s, at %s, want %s", len(got), at, l.Pos(), tx.Pos())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTrim keeps what a replica needs, up to a limit.
func TestTrim(t *testing.T) {
	l, err := txlog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rng := rand.New(rand.NewPCG(3, 3))
	var e txlog.Encoder
	for epoch := range uint64(4) { // each begins a segment
		for range 3 {
			tx := next(l.Pos(), rng)
			b, err := e.Append(nil, tx)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Append(tx, b, epoch, time.Unix(int64(epoch)*100, 0), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		before int64
		keep   ltx.TXID
		limit  int64
		base   ltx.TXID
	}{
		{-1, 12, 1 << 30, 0},  // nothing is old
		{150, 3, 1 << 30, 3},  // two segments are old, and a replica needs the second
		{150, 12, 1 << 30, 6}, // no longer
		{900, 7, 1, 9},        // the limit takes precedence over a replica; the last segment stays
	} {
		if err := l.Trim(time.Unix(c.before, 0), c.keep, c.limit); err != nil {
			t.Fatal(err)
		}
		if got := l.Base().TXID; got != c.base {
			t.Errorf("%+v: the log begins after %d", c, got)
		}
	}
	if _, err := l.AfterID(5); !errors.Is(err, txlog.ErrGone) {
		t.Error(err)
	}
	if _, err := l.After(ltx.Pos{TXID: 10, PostApplyChecksum: 1}); !errors.Is(err, txlog.ErrGone) {
		t.Error("another checksum: ", err)
	}
}

func FuzzDecode(f *testing.F) {
	var e txlog.Encoder
	b, err := e.Append(nil, next(ltx.Pos{}, rand.New(rand.NewPCG(1, 1))))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:120])
	f.Fuzz(func(t *testing.T, b []byte) {
		tx, err := txlog.Decode(b)
		if err != nil {
			return
		}
		var e txlog.Encoder
		again, err := e.Append(nil, tx)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := txlog.Decode(again); err != nil || back.Post != tx.Post || len(back.Pages) != len(tx.Pages) {
			t.Fatal(err)
		}
	})
}

// TestReadFails: a record that cannot be read at the moment is not gone.
func TestReadFails(t *testing.T) {
	dir := t.TempDir()
	l, err := txlog.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fill(t, l, 3)
	pos := l.Pos()
	segment := filepath.Join(dir, "0000000000000001.seg")
	if err := os.Rename(segment, segment+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.After(pos); !errors.Is(err, txlog.ErrGone) {
		t.Error("without a file: ", err)
	}
	if err := os.Symlink(segment, segment); err != nil { // ELOOP
		t.Fatal(err)
	}
	if _, err := l.After(pos); err == nil || errors.Is(err, txlog.ErrGone) {
		t.Error("with a file that cannot be opened: ", err)
	}
	if err := os.Remove(segment); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(segment, 0o700); err != nil { // EISDIR
		t.Fatal(err)
	}
	r, err := l.AfterID(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(); err == nil || errors.Is(err, txlog.ErrGone) {
		t.Error("with a file that cannot be read: ", err)
	}
	if err := errors.Join(os.Remove(segment), os.Rename(segment+".away", segment)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, l, ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}); len(got) != 3 {
		t.Errorf("%d records", len(got))
	}
}
