// Package wire tests what the API of a whole platform sends: golden exchanges, byte by byte, and
// the answers to unusual requests.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/platform"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestExchanges replays the files of testdata, each on a platform of its own. A file holds
// requests and the answers to them, in turn. What differs from run to run has placeholders, see
// placeholders, which requests may use.
func TestExchanges(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no exchanges: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
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
				want := archive.Files[i]
				if diff := cmp.Diff(string(want.Data), string(f.Data)); diff != "" || f.Name != want.Name {
					t.Errorf("%s is another one (-want +got), where %s is wanted:\n%s", f.Name, want.Name, diff)
				}
			}
		})
	}
}

// statusInName is how an exchange is named whose status may never be another.
var statusInName = regexp.MustCompile(`^(\d{3}): `)

// Whose tokens requests may use without having made them.
const (
	admin = "<admin>"
	guest = "<guest>" // of another organization than OrgPersonal
)

// vendor is the URL of a server that provides extensions.
const vendor = "<vendor>"

// requestSecret is the secret that such a server has to know.
var requestSecret = regexp.MustCompile(`"request_secret": "(\w+)"`)

func replay(t *testing.T, archive *txtar.Archive) *txtar.Archive {
	t.Helper()
	names := newPlaceholders() // of times from now on
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p := platform.Start(t, platform.Options{Version: "1.2.3", Config: func(c *daemon.Config) {
		c.ACME = "https://" + silent.Addr().String() + "/directory" // certificates can be requested, and never come
		c.DiskReserve = 1 << 10                                     // otherwise the disk of the server decides
	}})
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	r := &replayed{T: t, platform: p, transport: p.Checked(transport), names: names}
	r.names.add(admin, p.Token())
	out := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if strings.HasSuffix(f.Name, " answer") {
			continue
		}
		data := r.exchange(string(f.Data))
		out.Files = append(out.Files, f, txtar.File{Name: f.Name + " answer", Data: data})
		if status := statusInName.FindStringSubmatch(f.Name); status != nil && !bytes.HasPrefix(data, []byte(status[1])) {
			t.Errorf("%s is answered\n%s", f.Name, data)
		}
	}
	return out
}

// replayed is a platform and what its answers have named so far.
type replayed struct {
	*testing.T
	platform  *platform.Platform
	transport http.RoundTripper
	names     *placeholders
	vendor    *extensionstest.Server // nil: no request has named it yet
}

// exchange sends one request, written as method, path, headers, an empty line and a body. The
// header Until is not sent: the request is repeated until the answer contains that text. Nor is
// Unordered, which sorts the first list of the answer by what its elements are called here.
func (r *replayed) exchange(text string) []byte {
	r.Helper()
	if strings.Contains(text, guest) && !r.names.has(guest) {
		r.names.add(guest, r.newGuest())
	}
	if strings.Contains(text, vendor) && !r.names.has(vendor) {
		r.vendor = extensionstest.New(r.T)
		r.names.add(vendor, r.vendor.URL)
	}
	text = r.names.fill(text)
	for range attempts {
		sent := time.Now()
		answer, done := r.send(text)
		if secret := requestSecret.FindStringSubmatch(answer); secret != nil && r.vendor != nil {
			r.vendor.Trust(r, secret[1])
		}
		if done {
			return []byte(r.names.number(text, answer, sent))
		}
		if err := pause.For(r.Context(), 10*time.Millisecond); err != nil {
			r.Fatal(err)
		}
	}
	r.Fatalf("%s\nis never answered so", text)
	return nil
}

// attempts bounds how often a request is repeated.
const attempts = 3000

func (r *replayed) send(text string) (answer string, done bool) {
	r.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	scan := bufio.NewScanner(strings.NewReader(head))
	scan.Scan()
	method, target, _ := strings.Cut(scan.Text(), " ")
	req, err := http.NewRequestWithContext(r.Context(), method, r.platform.URL(), strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	aim(r, req, target)
	req.Header.Set("Authorization", "Bearer "+r.platform.Token())
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		req.Header.Set(name, strings.TrimSpace(value))
	}
	until, unordered := req.Header.Get("Until"), req.Header["Unordered"] != nil
	req.Header.Del("Until")
	req.Header.Del("Unordered")
	res, err := r.transport.RoundTrip(req)
	if err != nil {
		r.Fatalf("%s: %v", text, err)
	}
	defer res.Body.Close()
	for _, name := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original} {
		if !regexp.MustCompile(`^[0-9A-Z]{26}-loc$`).MatchString(res.Header.Get(name)) {
			r.Errorf("%s: header %s is %q", text, name, res.Header.Get(name))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", res.StatusCode)
	for _, name := range []string{"Content-Type", "Cache-Control", "Allow", "Retry-After", "WWW-Authenticate"} {
		if v := res.Header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n")
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatalf("%s: %v", text, err)
	}
	if unordered {
		raw = r.sorted(raw)
	}
	for line := range bytes.Lines(raw) {
		b.Write(indent(line))
	}
	if !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n") // a file of an archive ends so
	}
	return b.String(), strings.Contains(b.String(), until)
}

// newGuest makes another organization, and returns a token that may do everything in it.
func (r *replayed) newGuest() string {
	r.Helper()
	c := r.platform.Client()
	if _, err := c.CreateOrg(r.Context(), hangar.OrgCreate{Slug: "guests"}); err != nil {
		r.Fatal(err)
	}
	made, err := c.CreateToken(r.Context(), hangar.TokenCreate{Kind: hangar.TokenOrg, Name: "guest", Org: "guests"})
	if err != nil {
		r.Fatal(err)
	}
	return made.Text
}

// indent makes JSON readable; a line may end it.
func indent(text []byte) []byte {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return text
	}
	return b.Bytes()
}

// lastID says in a page which element is the last one.
var lastID = regexp.MustCompile(`"last_\w+_id":("\w+")`)

// sorted returns an answer whose first list is sorted by what placeholders stand in its elements.
func (r *replayed) sorted(answer []byte) []byte {
	r.Helper()
	from := max(bytes.IndexByte(answer, '['), 0)
	var elements []json.RawMessage
	list := json.NewDecoder(bytes.NewReader(answer[from:]))
	if err := list.Decode(&elements); err != nil || len(elements) == 0 {
		r.Fatalf("%s has no list to be sorted: %v", answer, err)
	}
	rest := string(answer[from+int(list.InputOffset()):])
	if last := lastID.FindStringSubmatch(rest); last != nil {
		if !bytes.Contains(elements[len(elements)-1], []byte(last[1])) {
			r.Errorf("%s is not the last one of %s", last[1], answer)
		}
		rest = strings.Replace(rest, last[1], `"<the last one>"`, 1)
	}
	slices.SortFunc(elements, func(a, b json.RawMessage) int {
		return strings.Compare(r.names.order(string(indent(a))), r.names.order(string(indent(b))))
	})
	sorted, err := json.Marshal(elements)
	if err != nil {
		r.Fatal(err)
	}
	return slices.Concat(answer[:from], sorted, []byte(rest))
}
