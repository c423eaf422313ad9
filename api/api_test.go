package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token belongs to an administrator.
const token = "secret"

// logins are tokens and their principals.
type logins map[string]hangar.Principal

func (l logins) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	p, ok := l[credential]
	if !ok {
		return p, hangar.Unauthenticated()
	}
	return p, nil
}

func (logins) Life(hangar.TokenID) context.Context { return context.Background() }

// newAPI returns an API without a platform: change adds the services that a test needs. The wire tests
// check the answers of an API with a whole platform.
func newAPI(change ...func(*api.Config)) *api.Handler {
	c := api.Config{
		Auth: logins{
			token:   {Subject: "admin", Admin: true},
			"guest": {Subject: "guest", Grants: []hangar.Grant{{Org: "guests", Actions: hangar.ActionAll}}},
		},
		Registry: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusTeapot)
		}),
		Region: "loc", Version: "1.2.3", Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&c)
	}
	return api.New(c)
}

func request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, body)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func TestBodyLimit(t *testing.T) {
	handler := newAPI()
	for _, size := range []int{router.MaxBodyBytes + 1, 10 << 20} {
		body := io.MultiReader(strings.NewReader(`{"name":"`), io.LimitReader(zeroes{}, int64(size)), strings.NewReader(`"}`))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request(t, http.MethodPost, "/v1/apps", body))
		if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "1048576") {
			t.Errorf("a body of %d bytes is answered %d %s", size, w.Code, w.Body)
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestDeepJSON(t *testing.T) {
	handler := newAPI()
	for name, value := range map[string]string{
		"arrays":  strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000),
		"objects": strings.Repeat(`{"a":`, 5_000) + "1" + strings.Repeat("}", 5_000),
	} {
		for _, path := range []string{"/v1/apps", "/v1/apps/web/machines"} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, request(t, http.MethodPost, path, strings.NewReader(`{"config":{"image":"nginx","x":`+value+`}}`)))
			if w.Code != http.StatusBadRequest {
				t.Errorf("%s to %s: answered %d %s", name, path, w.Code, w.Body)
			}
		}
	}
}

// failing is an AppService that returns only errors, or panics.
type failing struct {
	hangar.AppService
	apps func(ctx context.Context) error
}

func (f failing) Apps(ctx context.Context, _ hangar.AppFilter) ([]*hangar.App, error) {
	return nil, f.apps(ctx)
}

func listWith(t *testing.T, log io.Writer, apps func(ctx context.Context) error) *httptest.ResponseRecorder {
	t.Helper()
	handler := newAPI(func(c *api.Config) {
		c.Apps = failing{apps: apps}
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, request(t, http.MethodGet, "/v1/apps", nil))
	return w
}

func TestPanic(t *testing.T) {
	var log bytes.Buffer
	w := listWith(t, &log, func(context.Context) error { panic("boom") })
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "boom") {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "boom") || !strings.Contains(log.String(), "request=") {
		t.Errorf("logged %q, want the panic and the id of the request", log.String())
	}
}

func TestErrorTexts(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		text   string
		logged bool
	}{
		{errors.New("disk /dev/sda1 broke"), 500, "internal error; the log of the server has the cause under the id of this request", true},
		{&hangar.Error{Code: hangar.CodeInternal, Message: "the image is lost", Err: errors.New("at /var/lib")}, 500, "the image is lost", true},
		{hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine not running"), 412, "failed_precondition: machine not running", false},
		{hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken, "already_exists: unique machine name violation"), 409, "already_exists: unique machine name violation", false},
		{hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "no memory"), 409, "aborted: could not reserve resource for machine: no memory", false},
		{hangar.Errorf(hangar.CodeConflict, "", "machine update failed due to concurrent update"), 409, "aborted: machine update failed due to concurrent update", false},
		{hangar.Errorf(hangar.CodeExhausted, "", "rate limit exceeded"), 429, "rate limit exceeded", false},
		{hangar.Errorf(hangar.CodeInvalid, "", "%s", strings.Repeat("ü", 5000)), 400, strings.Repeat("ü", 2048) + "…", false},
		{hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "gone"), 404, "machine not found: gone", false},
		{hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken"), 422, "Validation failed: Name has already been taken", false},
		{&hangar.Error{Code: hangar.CodeUnavailable}, 503, "unavailable", false},
		{context.DeadlineExceeded, 408, "deadline_exceeded: the time for this request has passed", false},
		{context.Canceled, 503, "the server is shutting down", false},
	} {
		var log bytes.Buffer
		w := listWith(t, &log, func(context.Context) error { return test.err })
		var body struct {
			Error string `json:"error"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != test.status || body.Error != test.text {
			t.Errorf("%v is answered %d %s, want %d %q", test.err, w.Code, w.Body, test.status, test.text)
		}
		if logged := strings.Contains(log.String(), "level=ERROR"); logged != test.logged {
			t.Errorf("%v: logged as an error: %t, want %t", test.err, logged, test.logged)
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	seen := map[int]hangar.Code{}
	for _, code := range hangar.Codes() {
		w := listWith(t, io.Discard, func(context.Context) error { return hangar.Errorf(code, "", "x") })
		if other, ok := seen[w.Code]; ok {
			t.Errorf("%s and %s share status %d", code, other, w.Code)
		}
		seen[w.Code] = code
		if code != hangar.CodeInternal && w.Code == http.StatusInternalServerError {
			t.Errorf("%s has no status of its own", code)
		}
	}
}

// TestCallerWhoLeft: the end of a context is no fault of the server. It may be its shutdown, where an
// empty answer would be a 200.
func TestCallerWhoLeft(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	handler := newAPI(func(c *api.Config) {
		c.Apps = failing{apps: func(ctx context.Context) error { cancel(); return ctx.Err() }}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, request(t, http.MethodGet, "/v1/apps", nil).WithContext(ctx))
	if w.Code != http.StatusServiceUnavailable || log.Len() != 0 {
		t.Errorf("answered %d %s, logged %q", w.Code, w.Body, log.String())
	}
}

// TestUnreadBody sends a body that a handler does not read, on a connection that is reused.
func TestUnreadBody(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config = api.Server(newAPI())
	server.Start()
	defer server.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		_, err := io.WriteString(conn, "POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 404") {
			t.Fatalf("answered %q, %v", buf[:n], err)
		}
	}
}
