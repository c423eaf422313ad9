// Package spec_test holds what the documentation of the public platform's management
// interface says, sentence by sentence, and asks a real daemon whether it is so.
//
// Each file is a chapter: a table of rows, of which each has a sentence in our own
// words and the requests that show it; see exchange for how they are written. To add
// one, add it to the table of its chapter: nothing else is needed. Rows do not depend
// on each other, because each makes its own App, Machine or volume.
//
// Where this server deliberately differs, the row says so in its member differs and asserts the
// actual behaviour. docs/api.md lists these rows; this package writes that list.
package spec_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/test/daemon"
)

// row is a sentence and its proof.
type row struct {
	says    string // the sentence, in our own words
	differs string // what this server deliberately does instead, and why; empty: it does as the sentence says
	with    string // what the config of the row's Machines has besides the image
	do      string // requests and what they are answered; see exchange
	then    func(t *testing.T, x *exchange)
}

// chapter is a table of rows.
type chapter struct {
	title   string
	rows    []row
	sandbox bool // the rows need Machines that really run
}

// chapters lists every table. A table that is not here is not run.
func chapters() []chapter {
	return []chapter{
		{title: "Apps", rows: appRows()},
		{title: "Machines", rows: machineRows()},
		{title: "Machine config", rows: configRows()},
		{title: "Checks, services and mounts of a config", rows: configEdgeRows()},
		{title: "States", rows: stateRows()},
		{title: "Updates", rows: updateRows()},
		{title: "Leases", rows: leaseRows()},
		{title: "Waits", rows: waitRows()},
		{title: "Metadata", rows: metadataRows()},
		{title: "Volumes", rows: volumeRows()},
		{title: "Snapshots", rows: snapshotRows()},
		{title: "Secrets, addresses and places", rows: secretRows()},
		{title: "Tokens", rows: tokenRows()},
		{title: "Limits and errors", rows: limitRows()},
		{title: "Services", rows: serviceRows(), sandbox: true},
		{title: "Sandboxes", rows: sandboxRows(), sandbox: true},
	}
}

// TestSpec runs the rows for which it is enough that Machines are pretended.
func TestSpec(t *testing.T) { runChapters(t, false) }

// TestSandboxes runs the rows that need Machines that really run.
func TestSandboxes(t *testing.T) { runChapters(t, true) }

// runChapters runs chapters on one daemon: to start and to end one takes longer than a chapter.
func runChapters(t *testing.T, sandbox bool) {
	t.Helper()
	w := newWorld(t, sandbox)
	for _, c := range chapters() {
		if c.sandbox != sandbox {
			continue
		}
		t.Run(c.title, func(t *testing.T) {
			for _, r := range c.rows {
				t.Run(r.says, func(t *testing.T) {
					t.Parallel()
					r.run(t, w)
				})
			}
		})
	}
}

func (r row) run(t *testing.T, w *world) {
	x := &exchange{world: w, t: t, with: r.with, values: map[string]string{}}
	t.Cleanup(x.clean)
	x.run(r.do)
	if _, used := x.values["config"]; r.with != "" && !used {
		t.Error("no Machine of the row has the config that with describes")
	}
	if r.then != nil {
		r.then(t, x)
	}
}

// TestRows: the sentence names the row, and a row asks for something and says what it wants.
func TestRows(t *testing.T) {
	for _, c := range chapters() {
		seen := map[string]bool{}
		for _, r := range c.rows {
			if seen[r.says] {
				t.Errorf("%s: two rows say %q", c.title, r.says)
			}
			seen[r.says] = true
			if steps, err := parse(r.do); err != nil || len(steps) == 0 {
				t.Errorf("%s: %q has %d requests: %v", c.title, r.says, len(steps), err)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the list of differences in docs/api.md")

const (
	differencesPage    = "../../docs/api.md"
	differencesHeading = "\n## Differences from the public platform\n"
	differencesIntro   = `
What the documentation of the public platform's interface says, and what this server deliberately
does instead. Each line is a row of ` + "`test/spec`" + `, which asserts it; ` + "`go test ./test/spec -run Differences -update`" + `
writes them.

| where | the public platform | here |
|---|---|---|
`
)

// TestDifferencesAreListed compares docs/api.md with the rows that differ.
func TestDifferencesAreListed(t *testing.T) {
	var list strings.Builder
	for _, c := range chapters() {
		for _, r := range c.rows {
			if r.differs != "" {
				fmt.Fprintf(&list, "| %s | %s | %s |\n", c.title, r.says, r.differs)
			}
		}
	}
	page, err := os.ReadFile(differencesPage)
	if err != nil {
		t.Fatal(err)
	}
	before, after, _ := bytes.Cut(page, []byte(differencesHeading))
	var rest []byte
	if at := bytes.Index(after, []byte("\n## ")); at >= 0 {
		rest = after[at:]
	}
	want := string(before) + differencesHeading + differencesIntro + list.String() + string(rest)
	if *update {
		if err := os.WriteFile(differencesPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s does not list the differences as the rows have them; run with -update. It should have:\n%s", differencesPage, list.String())
	}
}

// world is a daemon and what its rows share.
type world struct {
	admin string // token of the administrator
	image string
	api   string
	calls *http.Client // of the API: answers are checked against the OpenAPI document
	edge  *http.Client // of Apps, by their names
}

func newWorld(t *testing.T, sandbox bool) *world {
	t.Helper()
	o := daemon.Options{Driver: "gvisor", Args: []string{"--acme", "off", "--volume-overcommit", "1000", "--cpu-overcommit", "1000", "--autostop-after", "1s"}}
	if !sandbox {
		o.Driver = "fake"
		o.Args = append(o.Args, "--memory-overcommit", "1000")
	}
	for _, key := range []string{"apps", "machines", "memory_mb", "cpus", "volumes", "volume_gb", "snapshots", "addresses_v4", "addresses_v6", "networks"} {
		o.Args = append(o.Args, "--quota", key+"=unlimited")
	}
	d := daemon.Start(t, o)
	root := daemon.Busybox(t, "sh", "sleep", "cat", "httpd", "mkdir", "ls", "false", "nc", "df", "tail", "printf", "nproc", "wc", "sort", "uniq", "head")
	if sandbox {
		if err := gobuild.Build(t.Context(), filepath.Join(root, "bin", "call"), "./call"); err != nil {
			t.Fatal(err)
		}
	}
	// A server of HTTP, whose page is the id of its Machine.
	image := d.Push(root, "web:1", "--cmd", "sh", "--cmd", "-c", "--cmd", "mkdir -p /www; echo $FLY_MACHINE_ID >/www/index.html; exec httpd -f -p 8080 -h /www")
	w := &world{admin: d.Token(), image: image, api: d.URL(), calls: &http.Client{Transport: d.Transport(), CheckRedirect: stay}}
	t.Cleanup(w.calls.CloseIdleConnections)
	plain, secure := d.Edge()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(d.Dir(), "edge", "certificates", "ca.pem"))
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("the authority of the edge: %v", err)
	}
	dialer := net.Dialer{}
	w.edge = &http.Client{CheckRedirect: stay, Transport: &http.Transport{
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			// In an address that hangar tells, port 443 has the number that the edge was given.
			switch host, port, _ := net.SplitHostPort(address); {
			case !strings.HasSuffix(host, ".localhost"):
			case port == "80":
				address = plain
			default:
				address = secure
			}
			return dialer.DialContext(ctx, network, address)
		},
	}}
	t.Cleanup(w.edge.CloseIdleConnections)
	return w
}

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
