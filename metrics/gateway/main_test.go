package gateway

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
)

func TestMain(m *testing.M) { os.Exit(metricstest.Main(m)) }

// generous are limits that tests of other things never reach.
var generous = Limits{Rate: 1e6, Burst: 1e6, Wait: time.Minute}

func newGateway(t *testing.T, s metrics.Store, limits Limits) *Gateway {
	t.Helper()
	return New(Options{Store: s, Limits: limits, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// call makes a request: GET with the parameters in the URL, or POST with a form.
func call(t *testing.T, g *Gateway, tenant metrics.Tenant, scope Scope, method, path string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	return send(t, g, tenant, scope, method, path, form.Encode())
}

func send(t *testing.T, g *Gateway, tenant metrics.Tenant, scope Scope, method, path, encoded string) *httptest.ResponseRecorder {
	t.Helper()
	var r *http.Request
	if method == http.MethodPost {
		r = httptest.NewRequestWithContext(t.Context(), method, "/prometheus/acme", strings.NewReader(encoded))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else {
		r = httptest.NewRequestWithContext(t.Context(), method, "/prometheus/acme", http.NoBody)
		r.URL.RawQuery = encoded
	}
	w := httptest.NewRecorder()
	g.Serve(w, r, tenant, scope, path)
	return w
}

// failed returns the type and the text of an error.
func failed(t *testing.T, w *httptest.ResponseRecorder) (kind, text string) {
	t.Helper()
	var body struct{ Status, ErrorType, Error string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Status != "error" || body.ErrorType == "" || body.Error == "" {
		t.Errorf("%q is no error as Prometheus has them: %v", w.Body.String(), err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("the type of an error is %q", got)
	}
	return body.ErrorType, body.Error
}

func apps(names ...hangar.AppName) Scope { return Scope{Apps: append([]hangar.AppName{}, names...)} }
