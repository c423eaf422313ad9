package platform

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
)

// layerType is the media type of a layer that is not compressed.
const layerType = "application/vnd.oci.image.layer.v1.tar"

// registries are all registries of the world. Each has every tag of every repository, and each
// tag is another image. Nothing is where a repository or a tag is called missing, or behind a
// digest that no tag has been answered with; a registry whose name begins with "down." cannot be
// reached.
type registries struct {
	mu    sync.Mutex
	blobs map[string][]byte // by digest; guarded by mu
}

// RoundTrip implements http.RoundTripper.
func (r *registries) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Host, "down.") {
		return nil, fmt.Errorf("host %s is down", req.URL.Host)
	}
	w := httptest.NewRecorder()
	r.answer(w, req)
	res := w.Result()
	res.Request = req
	return res, nil
}

func (r *registries) answer(w http.ResponseWriter, req *http.Request) {
	path, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	if !ok || strings.Contains(path, "missing") {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if path == "" { // the question whether it is a registry
		return
	}
	var body []byte
	if repository, name, ok := strings.Cut(path, "/manifests/"); ok {
		digest := name
		if !strings.HasPrefix(name, "sha256:") {
			digest = r.tagged(req.URL.Host + "/" + repository + ":" + name)
		}
		body = r.blob(digest)
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Docker-Content-Digest", digest)
	} else {
		body = r.blob(path[strings.LastIndex(path, "/")+1:])
	}
	if body == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if req.Method != http.MethodHead {
		_, _ = io.Copy(w, bytes.NewReader(body)) // a recorder takes everything
	}
}

// tagged makes the image of a tag and returns its digest, which is the same each time.
func (r *registries) tagged(reference string) string {
	layer := layer()
	config := r.keep(encode(map[string]any{
		"author": reference, "architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": []string{"serve"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digestOf(layer)}},
	}))
	config["mediaType"] = "application/vnd.oci.image.config.v1+json"
	contents := r.keep(layer)
	contents["mediaType"] = layerType
	return r.keep(encode(map[string]any{"schemaVersion": 2, "config": config, "layers": []any{contents}}))["digest"].(string)
}

// keep keeps a blob and describes it.
func (r *registries) keep(blob []byte) map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil {
		r.blobs = map[string][]byte{}
	}
	digest := digestOf(blob)
	r.blobs[digest] = blob
	return map[string]any{"digest": digest, "size": len(blob)}
}

func (r *registries) blob(digest string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blobs[digest]
}

// layer has one file.
func layer() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const program = "a program"
	_ = w.WriteHeader(&tar.Header{Name: "serve", Mode: 0o755, Size: int64(len(program))}) // to memory: cannot fail
	_, _ = io.WriteString(w, program)
	_ = w.Close()
	return b.Bytes()
}

func encode(v any) []byte {
	b, _ := json.Marshal(v) // plain values: cannot fail
	return b
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
