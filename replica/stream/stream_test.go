package stream

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

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
