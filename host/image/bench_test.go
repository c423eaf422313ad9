package image_test

import (
	"net/http"
	"testing"
)

// BenchmarkPull pulls a layer of 100 MB over loopback: from another host, over mutual TLS, and from a
// registry, over HTTP.
func BenchmarkPull(b *testing.B) {
	const size = 100 << 20
	_, hosts := cluster(b, aa, bb)
	img := imageOf(b, noise(b, size))
	push(b, hosts[aa].clients+"/personal/app:v1", img, token)
	u := serve(b)
	for _, from := range []struct{ name, ref string }{
		{"host", builtIn + "/personal/app:v1"},
		{"registry", u.push(b, "team/app:v1", img)},
	} {
		b.Run(from.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				got, err := hosts[bb].Pull(b.Context(), tenant, from.ref, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := hosts[bb].Remove(b.Context(), got.Ref.Digest); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("read", func(b *testing.B) { // the same, not unpacked
		layers, err := img.Layers()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(size)
		for b.Loop() {
			if code, _, raw := hosts[bb].call(b, http.MethodGet, "/v2/personal/app/blobs/"+digest(b, layers[0])); code != http.StatusOK || len(raw) < size {
				b.Fatalf("got %d, %d bytes", code, len(raw))
			}
		}
	})
}
