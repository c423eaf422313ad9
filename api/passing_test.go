package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

// passing is a platform in transient states, or in states that need the world around a server.
type passing struct {
	hangar.MachineService
	hangar.CertificateService
	hangar.VolumeService
}

// noon has no fraction of a second.
var noon = time.Date(2026, 8, 14, 12, 0, 0, 0, time.UTC)

func (passing) MachineProcesses(context.Context, hangar.MachineRef) ([]hangar.Process, error) {
	return []hangar.Process{{
		PID: 1, StartedMS: 20, RunMS: 3000, Command: "/init", Directory: "/", CPU: 0.125, RSS: 4 << 20,
		ListenSockets: []hangar.ListenSocket{{Proto: "tcp", Address: "[::]:80"}, {Proto: "udp", Address: "127.0.0.1:53"}},
	}}, nil
}

// OrgMachines has two pages.
func (passing) OrgMachines(_ context.Context, org hangar.OrgSlug, q hangar.MachinePageQuery) (hangar.MachinePage, error) {
	machine := func(id hangar.MachineID) []*hangar.Machine {
		return []*hangar.Machine{{ID: id, App: "web", Name: "one", State: hangar.MachineStarted, Region: "loc", HostStatus: "ok", CreatedAt: noon, UpdatedAt: noon}}
	}
	switch {
	case org != "acme" || q.Limit != 1:
		return hangar.MachinePage{}, fmt.Errorf("asked for %+v of %s", q, org)
	case q.Cursor == "":
		return hangar.MachinePage{Machines: machine("d8912340000001"), Next: "the second page"}, nil
	case q.Cursor == "the second page":
		return hangar.MachinePage{Machines: machine("d8912340000002"), LastUpdated: noon, ErrorRegions: []hangar.Region{"eur"}}, nil
	default:
		return hangar.MachinePage{}, fmt.Errorf("asked for %+v", q)
	}
}

// Certificate is one that an ACME server has issued, or has refused to issue.
func (passing) Certificate(_ context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	c := &hangar.Certificate{
		Hostname: name, App: app, ACME: true, CreatedAt: noon, UpdatedAt: noon, Proof: hangar.ProofDNS, ProvenAt: noon,
		Ownership: name.Ownership("appappappappapp0", "orgorgorgorgorg0"), CNAME: "web.hangar.localhost",
	}
	if strings.HasPrefix(string(name), "broken.") {
		c.Errors = []hangar.CertificateError{{Code: "dns", Message: "No valid A records found for " + string(name), Remediation: "Let the name lead to the App.", Timestamp: noon}}
		c.RateLimitedUntil, c.Issued = noon.Add(time.Hour), []hangar.IssuedCertificate{{Kind: hangar.CertificateACME, Status: hangar.CertificatePending}}
		return c, nil
	}
	c.Issued = []hangar.IssuedCertificate{{
		Kind: hangar.CertificateACME, Status: hangar.CertificateActive, KeyType: "ecdsa", Issuer: "An authority", CreatedAt: noon, ExpiresAt: noon.AddDate(0, 3, 0),
	}}
	return c, nil
}

// Volume is one that is being filled.
func (passing) Volume(_ context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	v := &hangar.Volume{
		ID: ref.ID, App: ref.App, Name: "data", State: hangar.VolumeRestoring, SizeGB: 6, Region: "loc", Zone: "0001", Host: "0000000a", CreatedAt: noon, UpdatedAt: noon,
		Filling: hangar.Filling{Source: "vol_0000000000000009", Progress: hangar.Progress{Done: 1 << 30, Total: 6 << 30}}, HostStatus: "ok", Wanted: hangar.FSExt4,
	}
	if ref.ID == "vol_0000000000000001" {
		v.Filling.Snapshot, v.Filling.Source = "vs_00000000000000000002", ""
	}
	return v, nil
}

func (passing) VolumeDrill(_ context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	d := &hangar.VolumeDrill{
		App: app, Volume: "vol_0000000000000001", Snapshot: "vs_00000000000000000002", StartedAt: noon, Progress: hangar.Progress{Done: 1 << 30, Total: 6 << 30},
	}
	if app == "tried" {
		d.FinishedAt, d.Fault, d.Progress = noon.Add(time.Minute), "the digest is another one", hangar.Progress{}
	}
	return d, nil
}

// TestPassingStates: how the API writes states that a test of a whole platform cannot wait for. The
// name of an answer says what it is for. The connection cannot be upgraded.
func TestPassingStates(t *testing.T) {
	t.Parallel()
	const file = "testdata/passing.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plain := newAPI(func(c *api.Config) {
		c.Machines, c.Certificates, c.Volumes = passing{}, passing{}, passing{}
	})
	handler := openapitest.Of(t, plain, "/v1/openapi.json").Handler(t, plain)
	for i, f := range archive.Files {
		method, path, _ := strings.Cut(f.Name, " ")
		r := request(t, method, path, http.NoBody)
		if strings.Contains(path, "/exec?") {
			for _, h := range [][2]string{{"Connection", "Upgrade"}, {"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}} {
				r.Header.Set(h[0], h[1])
			}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		var got bytes.Buffer
		fmt.Fprintf(&got, "%d %s\n\n", w.Code, w.Header().Get("Content-Type"))
		if err := json.Indent(&got, bytes.TrimSpace(w.Body.Bytes()), "", "  "); err != nil {
			t.Fatalf("%s is answered %s: %v", f.Name, w.Body, err)
		}
		got.WriteString("\n")
		if *update {
			archive.Files[i].Data = got.Bytes()
		} else if diff := cmp.Diff(string(f.Data), got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
