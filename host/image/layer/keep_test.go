package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestKeptPathsAreBounded: each kind of path that is kept in memory until the end of a layer counts,
// whatever the archive repeats.
func TestKeptPathsAreBounded(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("owners and whiteouts need root")
	}
	long := strings.Repeat("d", 200)
	for name, headers := range map[string][]tar.Header{
		"directory":          {{Name: long, Typeflag: tar.TypeDir}},
		"implicit directory": {{Name: long + "/f", Typeflag: tar.TypeReg}},
		"deleted file":       {{Name: ".wh." + long, Typeflag: tar.TypeReg}},
		"opaque directory":   {{Name: "d", Typeflag: tar.TypeDir}, {Name: "d/.wh..wh..opq", Typeflag: tar.TypeReg}},
	} {
		free := pathOverhead + len(long)
		if len(headers) > 1 {
			free = 2 * (pathOverhead + len("d"))
		}
		// A directory whose entry is repeated is kept once.
		headers = append([]tar.Header{{Name: "./", Typeflag: tar.TypeDir}, {Name: "./", Typeflag: tar.TypeDir}}, headers...)
		free += pathOverhead
		if err := unpackWith(t, free, headers); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := unpackWith(t, free-1, headers); !errors.Is(err, ErrTooLarge) || hangar.ReasonOf(err) != hangar.ReasonBadImage {
			t.Errorf("%s beyond the bound: %v", name, err)
		}
	}
}

// unpackWith unpacks files by an unpacker that has that many bytes left for paths.
func unpackWith(t *testing.T, free int, headers []tar.Header) error {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		if err := w.WriteHeader(&headers[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	limits := Limits{Bytes: 1 << 20, Files: 10, Ratio: 100, Slack: 1 << 20}
	s, err := newStream(t.Context(), &b, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	u, err := newUnpacker(t.TempDir(), limits, s)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	u.kept = maxKept - free
	return u.run(s)
}
