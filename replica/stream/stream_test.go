package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/superfly/ltx"
)

// TestParts sends data in several frames and joins it.
func TestParts(t *testing.T) {
	var b bytes.Buffer
	w := newWriter(&b, nil)
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	for _, d := range [][]byte{data, nil} {
		if err := w.parts(kindTx, "a.db", d); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.send(); err != nil {
		t.Fatal(err)
	}
	var got []int
	var buf []byte
	a := assembly{limit: len(data)}
	for {
		k, payload, grown, err := readFrame(&b, buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || k != kindTx {
			t.Fatal(k, err)
		}
		buf = grown
		p, err := parsePart(payload)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := a.add(p)
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			if a.name != "a.db" || !bytes.HasPrefix(data, a.data) {
				t.Error("other data of ", a.name)
			}
			got = append(got, len(a.data))
			a.data = nil
		}
	}
	if len(got) != 2 || got[0] != len(data) || got[1] != 0 {
		t.Error(got)
	}
}

// TestBounds refuses frames that would exhaust memory, or mix databases.
func TestBounds(t *testing.T) {
	if _, _, _, err := readFrame(strings.NewReader("\x11\xff\xff\xff\xff"), nil); !errors.Is(err, errFrame) {
		t.Error(err)
	}
	a := assembly{limit: 10}
	if _, err := a.add(part{name: "a", data: make([]byte, 6)}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []part{{name: "a", data: make([]byte, 5)}, {name: "b", data: make([]byte, 1)}} {
		if _, err := a.add(p); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

func TestPosition(t *testing.T) {
	want := ltx.Pos{TXID: 0xabc, PostApplyChecksum: ltx.ChecksumFlag | 5}
	if got, err := parsePos(want.String()); err != nil || got != want {
		t.Error(got, err)
	}
	for _, s := range []string{"", "0000000000000abc-8000000000000005", "000000000000zabc/8000000000000005"} {
		if _, err := parsePos(s); err == nil {
			t.Errorf("%q is a position", s)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x11\x00\x00\x00\x05\x01\x00\x01ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var buf []byte
		for {
			_, payload, grown, err := readFrame(r, buf)
			if err != nil {
				return
			}
			buf = grown
			if p, err := parsePart(payload); err == nil && len(p.name)+len(p.data)+3 != len(payload) {
				t.Error("a part has other bytes than its frame")
			}
			if v, err := parseVector("a", payload); err == nil && 8*len(v.sums)+4 != len(payload) {
				t.Error("a vector has other bytes than its frame")
			}
		}
	})
}

// TestListensWhileItSends: the primary reads frames of a replica while it is busy sending to that replica.
// Otherwise both could wait for the other one to read.
func TestListensWhileItSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(hello{})
		in, replica := io.Pipe()
		var listening sync.WaitGroup
		listening.Go(func() {
			err := f.listen(in, func(name string) bool { return name != "unknown" }, func() {})
			_ = in.CloseWithError(err)
		})
		out := newWriter(replica, nil)
		vector := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, 4096), 7)
		listening.Go(func() {
			for _, name := range []string{"a", "b", "unknown", "a"} {
				if err := errors.Join(out.parts(kindSums, name, vector), out.send()); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(out.json(kindAck, position{Name: "b", Pos: "0000000000000009/8000000000000001"}), out.send()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		f.mu.Lock()
		acked, kept := f.acked["b"], len(f.sums)
		f.mu.Unlock()
		if acked != 9 || kept != 2 {
			t.Errorf("the replica has acknowledged %s, and %d checksums wait", acked, kept)
		}
		_ = replica.Close()
		listening.Wait()
		for range 2 {
			if v, ok := f.takeSums(); !ok || len(v.sums) != 1 {
				t.Errorf("got %+v, %v", v, ok)
			}
		}
		if _, ok := f.takeSums(); ok {
			t.Error("checksums are taken twice")
		}
	})
}
