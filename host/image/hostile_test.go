package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
)

// rawLayer is a layer of arbitrary bytes.
func rawLayer(data []byte) v1.Layer { return static.NewLayer(data, types.DockerLayer) }

func gzipped(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileImagesAreRefused(t *testing.T) {
	good := files(t, map[string]string{"a": "1"})
	var traversal bytes.Buffer
	w := tar.NewWriter(&traversal)
	if err := w.WriteHeader(&tar.Header{Name: "../../evil", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	answer := func(suffix, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, suffix) || r.Method == http.MethodHead && !strings.Contains(suffix, "manifests") {
				return false
			}
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return true
			}
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	rc, err := good.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	flipped, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	flipped[len(flipped)-1] ^= 1
	h := "sha256:" + strings.Repeat("a", 64)
	config := `"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + h + `","size":2}`
	tests := []struct {
		name      string
		image     v1.Image
		intercept func(http.ResponseWriter, *http.Request) bool
		pinned    bool
		says      string
	}{
		{name: "path traversal", image: imageOf(t, rawLayer(gzipped(t, traversal.Bytes()))), says: "leads out"},
		{name: "zip bomb", image: imageOf(t, rawLayer(gzipped(t, make([]byte, 40<<20)))), says: "too large"},
		{name: "large file", image: imageOf(t, files(t, map[string]string{"a": strings.Repeat("x", 2<<20)})), says: "larger"},
		{name: "large together", image: imageOf(t, files(t, map[string]string{"a": strings.Repeat("x", 700<<10)}), files(t, map[string]string{"b": strings.Repeat("x", 700<<10)})), says: "larger"},
		{name: "wrong diff id", image: imageOf(t, rawLayer(gzipped(t, make([]byte, 1024)))), says: "unpacks to"},
		{name: "many layers", image: imageOf(t, slices.Repeat([]v1.Layer{good}, 9)...), says: "9 layers"},
		{name: "layer that is another", image: imageOf(t, good), intercept: answer(digest(t, good), string(flipped)), says: "layer has the digest"},
		{name: "manifest that is another", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2}`), pinned: true, says: "not sha256"},
		{name: "large manifest", image: imageOf(t, good), intercept: answer("/manifests/", strings.Repeat(" ", 5000)), says: "manifest is larger"},
		{name: "schema 1", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":1,"name":"x"}`), says: "schema version 1"},
		{name: "not JSON", image: imageOf(t, good), intercept: answer("/manifests/", `<html>`), says: "damaged"},
		{name: "neither image nor index", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2}`), says: "neither"},
		{name: "digest with a path", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"digest":"sha256:../../../etc/passwd"}}`), says: "damaged"},
		{name: "large config", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"digest":"`+h+`","size":999999999}}`), says: "config is larger"},
		{name: "artifact", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"`+h+`"}}`), says: "not an image"},
		{name: "index of other platforms", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"manifests":[{"digest":"`+h+`","platform":{"os":"windows","architecture":"amd64"}},{"digest":"`+h+`","platform":{"os":"linux","architecture":"s390x"}}]}`), says: "only for: windows/amd64, linux/s390x"},
		{name: "layers that the config does not have", image: imageOf(t, good), intercept: func(w http.ResponseWriter, r *http.Request) bool {
			return answer("/manifests/", `{"schemaVersion":2,`+config+`,"layers":[{"digest":"`+h+`","size":1}]}`)(w, r) || answer("/blobs/", "{}")(w, r)
		}, says: "config has the digest"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := serve(t)
			ref := u.push(t, "evil:v1", tt.image)
			if tt.pinned {
				ref += "@" + digest(t, tt.image)
			}
			if tt.intercept != nil {
				u.on(tt.intercept)
			}
			dir := t.TempDir()
			s := open(t, image.Options{Dir: dir, Limits: image.Limits{UnpackedBytes: 1 << 20, Files: 100, Layers: 8, ManifestBytes: 4096}})
			_, err := s.Pull(t.Context(), tenant, ref, nil)
			wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, tt.says)
			if err := s.Close(); err != nil { // it waits for abandoned work
				t.Fatal(err)
			}
			if _, tmp := left(t, dir); tmp != 0 {
				t.Errorf("%d half-made things are left", tmp)
			}
			if list, _ := s.List(); len(list) != 0 {
				t.Errorf("it is held: %+v", list)
			}
		})
	}
}
