package platform_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/acmetest"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/platform"
)

// TestMetricsByMutualTLS: the servers of a platform write to, and ask, a cluster of VictoriaMetrics that lets
// in by certificates.
func TestMetricsByMutualTLS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chain, key := acmetest.SelfSigned(t, "hangar.example.com", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	certFile, keyFile := file("cert.pem", chain), file("key.pem", key)
	var writes, queries atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case strings.HasPrefix(r.URL.Path, "/insert/"):
			writes.Add(1)
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(r.URL.Path, "/api/v1/query"):
			queries.Add(1)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"7"]}]}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	admitted := x509.NewCertPool()
	admitted.AppendCertsFromPEM(chain)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: admitted}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := file("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	use := func(c *daemon.Config) { c.MetricsURL, c.MetricsCA = server.URL, ca }
	query := func(p *platform.Platform) error {
		_, err := p.Client().QueryMetrics(t.Context(), client.MetricsQuery{Org: hangar.OrgPersonal, Expr: "a"}, time.Time{})
		return err
	}

	stranger := platform.Start(t, platform.Options{Config: use})
	if err := query(stranger); hangar.CodeOf(err) != hangar.CodeUnavailable || queries.Load() != 0 {
		t.Errorf("without a certificate: %v, %d queries arrived", err, queries.Load())
	}
	c := platform.StartCluster(t, 2, platform.Options{Config: func(c *daemon.Config) {
		use(c)
		c.MetricsCert, c.MetricsKey = certFile, keyFile
	}})
	for i, p := range c.Servers {
		if err := query(p); err != nil || queries.Load() != int64(i+1) {
			t.Errorf("server %d: %v, %d queries arrived", i, err, queries.Load())
		}
	}
	api := c.Servers[0].Client()
	if _, err := api.CreateApp(t.Context(), hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CreateMachine(t.Context(), "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "alpine"}}); err != nil {
		t.Fatal(err)
	}
	for writes.Load() == 0 {
		if err := pause.For(t.Context(), 50*time.Millisecond); err != nil { // no event reports a write
			t.Fatal("no samples arrived")
		}
	}
}
