package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

const token = "secret"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newAPI is the API over an empty platform on which no time passes.
func newAPI(change ...func(*api.Config)) http.Handler {
	now := time.Date(2026, 8, 14, 9, 57, 35, 250e6, time.UTC)
	s := fake.New("loc", fake.WithClock(func() time.Time { return now }))
	c := api.Config{
		Orgs: s, Tokens: s, Apps: s, Machines: s, Logs: s, Images: s, Platform: s,
		Secrets: s, SecretKeys: s, Registries: s, Encryption: s, Identity: s, SigningKeys: s, Issuer: s, Peers: s, Volumes: s, Addresses: s, Certificates: s,
		Auth: s.Login(fake.Tokens{
			token:   {Subject: "admin", Admin: true},
			"guest": {Subject: "guest", Grants: []hangar.Grant{{Org: "guests", Actions: hangar.ActionAll}}},
		}),
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

// TestExchanges replays the files of testdata. Each holds requests and the answers
// to them, in turn; ids that are random are numbered in the order of their first
// appearance, and a request may use them.
func TestExchanges(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no exchanges: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out := replay(t, archive)
			if *update {
				if err := os.WriteFile(file, txtar.Format(out), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(out.Files) != len(archive.Files) {
				t.Fatalf("%d files, want %d: every request and its answer", len(archive.Files), len(out.Files))
			}
			for i, f := range out.Files {
				if want := archive.Files[i]; f.Name != want.Name || !bytes.Equal(f.Data, want.Data) {
					t.Errorf("%s is\n%s\nwant %s\n%s", f.Name, f.Data, want.Name, want.Data)
				}
			}
		})
	}
}

// statusInName is how an exchange is named whose status may never be another.
var statusInName = regexp.MustCompile(`^(\d{3}): `)

func replay(t *testing.T, archive *txtar.Archive) *txtar.Archive {
	t.Helper()
	handler := newAPI()
	handler = openapitest.Of(t, handler, "/v1/openapi.json", "/v2/").Handler(t, handler)
	ids := &ids{numbers: map[string]string{}, values: map[string]string{}}
	out := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if strings.HasSuffix(f.Name, " answer") {
			continue
		}
		data := exchange(t, handler, ids.fill(string(f.Data)), ids)
		out.Files = append(out.Files, f, txtar.File{Name: f.Name + " answer", Data: data})
		if status := statusInName.FindStringSubmatch(f.Name); status != nil && !bytes.HasPrefix(data, []byte(status[1])) {
			t.Errorf("%s is answered\n%s", f.Name, data)
		}
	}
	return out
}

// exchange sends one request, written as method, path, headers, an empty line and
// a body.
func exchange(t *testing.T, handler http.Handler, text string, ids *ids) []byte {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	scan := bufio.NewScanner(strings.NewReader(head))
	scan.Scan()
	method, path, _ := strings.Cut(scan.Text(), " ")
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		r.Header.Set(name, strings.TrimSpace(value))
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	for _, name := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original} {
		if !regexp.MustCompile(`^[0-9A-Z]{26}-loc$`).MatchString(w.Header().Get(name)) {
			t.Errorf("%s: header %s is %q", text, name, w.Header().Get(name))
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d\n", w.Code)
	for _, name := range []string{"Content-Type", "Cache-Control", "Allow", "Retry-After", "WWW-Authenticate"} {
		if v := w.Header().Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n")
	for line := range strings.Lines(w.Body.String()) {
		if json.Indent(&b, []byte(line), "", "  ") != nil {
			b.WriteString(line)
		}
	}
	if !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n") // a file of an archive ends so
	}
	return []byte(ids.number(b.String()))
}

// ids numbers what is random.
type ids struct{ numbers, values map[string]string }

// randomPattern finds ULIDs, UUIDs, the nonces of leases, public keys, and tokens.
var randomPattern = regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]+|[\w-]{342}|` +
	`\b(0[0-9A-HJKMNP-TV-Z]{25}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12}|hgr_\w+)\b`)

func (i *ids) number(text string) string {
	return randomPattern.ReplaceAllStringFunc(text, func(id string) string {
		if i.numbers[id] == "" {
			name := "id"
			if strings.HasPrefix(id, "hgr_") || strings.HasPrefix(id, "eyJ") {
				name = "token"
			}
			n := 1
			for i.values[fmt.Sprintf("<%s-%d>", name, n)] != "" {
				n++
			}
			i.numbers[id] = fmt.Sprintf("<%s-%d>", name, n)
			i.values[i.numbers[id]] = id
		}
		return i.numbers[id]
	})
}

func (i *ids) fill(text string) string {
	return regexp.MustCompile(`<(?:id|token)-\d+>`).ReplaceAllStringFunc(text, func(n string) string { return i.values[n] })
}
