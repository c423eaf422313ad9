package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var update = flag.Bool("update", false, "write docs/compatibility.md")

const reportFile = "../../docs/compatibility.md"

const reportHead = `# Compatibility

What runs as a Machine is proved, not promised: ` + "`make e2e`" + ` packs these programs from
packages of %s, runs each on the gVisor engine, and takes it through all of this:

- it boots and serves a client that connects to its private address;
- it passes a check of its own, which is run inside or by its own client program;
- it is suspended and resumed several times while a client stays connected and keeps
  sending requests, also while it is suspended: the same connection, the same memory, no
  answer lost;
- the daemon is killed and started again under that client, which does not notice;
- it is stopped and started again; databases keep what was written.

This file is written by ` + "`go test ./test/e2e -run TestPrograms -update`" + `.

| software | version | passed | its own check |
|---|---|---|---|
`

const reportTail = `
## Known limits of the engine

gVisor is a kernel of its own and does not have everything that Linux has. Of the 717
tests of CPython's ` + "`test_socket`" + `, which is therefore not among its checks above, those
for UDP-Lite and for ancillary data of IPv6 datagrams that is cut off fail. Two more ask
for /etc/services, which the image does not have; all others pass or do not apply.

` + "`dnsmasq`" + ` does not start: the engine refuses the netlink socket with which it follows changes of
routes and addresses. Unbound does.
`

// packed is an image and its name in the registry.
type packed struct {
	v1.Image
	ref string
}

// report is what a run found.
type report struct {
	release string
	rows    []*row
}

// row is what a run found about a program.
type row struct {
	title   string
	version string
	checks  string
	passed  []string
	failed  string
	seconds map[string]float64
}

func (r *report) row(p *program) *row {
	n := &row{title: p.title, checks: p.checks, seconds: map[string]float64{}}
	r.rows = append(r.rows, n)
	return n
}

// markdown is the report for docs.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, reportHead, r.release)
	for _, row := range r.rows {
		passed := "all"
		if row.failed != "" {
			passed = "all before: " + row.failed
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.title, row.version, passed, row.checks)
	}
	b.WriteString(reportTail)
	return b.String()
}

// finish prints what was found, and writes it or compares it with what is written.
func (r *report) finish(t *testing.T) {
	t.Helper()
	for _, row := range r.rows {
		t.Log(row)
	}
	if flag.Lookup("test.run").Value.String() != "" && strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // only some of the programs ran
	}
	if *update {
		if err := os.WriteFile(reportFile, []byte(r.markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(reportFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if got := withoutVersions(r.markdown()); !t.Failed() && got != withoutVersions(string(written)) {
		t.Errorf("docs/compatibility.md says something else; run with -update. Found:\n%s", r.markdown())
	}
}

var versionCell = regexp.MustCompile(`(?m)^(\| [^|]+ \| )[^|]+( \|)|packages of [^,]+,`)

// withoutVersions leaves out what another release of Debian changes.
func withoutVersions(markdown string) string {
	return versionCell.ReplaceAllString(markdown, "$1$2")
}
