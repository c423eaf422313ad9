package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// tenant is an organization with Machines on each server.
type tenant struct {
	org      hangar.OrgSlug
	app      hangar.AppName
	token    string
	image    string
	machines []*hangar.Machine
}

func (c *cluster) tenant(name string) *tenant {
	c.Helper()
	first := c.servers[0]
	o := &tenant{org: hangar.OrgSlug(name), app: hangar.AppName(name + "-app")}
	if _, err := first.client().CreateOrg(c.Context(), hangar.OrgCreate{Slug: o.org}); err != nil {
		c.Fatal(err)
	}
	made, err := first.client().CreateToken(c.Context(), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: o.org})
	if err != nil {
		c.Fatal(err)
	}
	o.token = made.Text
	o.image = c.pushWeb(o.org)
	first.createApp(o.app, o.org)
	o.machines = c.oneOnEach(o.app, parse(c, webConfig, o.image))
	return o
}

// TestTenantsAcrossServers looks for a way from the Machines and the tokens of one organization to those of
// another by way of another server.
func TestTenantsAcrossServers(t *testing.T) {
	c := startCluster(t, fromEnv(t, "CLUSTER_SERVERS", 3))
	a, b := c.tenant("alpha"), c.tenant("beta")
	t.Run("packets and names", func(t *testing.T) { c.packets(t, a, b) })
	t.Run("tokens", func(t *testing.T) { c.tokens(t, a, b) })
	t.Run("certificates of hosts", func(t *testing.T) { c.certificates(t) })
}

// inside runs a command in a Machine, by any server.
func (c *cluster) inside(m *hangar.Machine, command string) (string, error) {
	var out bytes.Buffer
	s := c.servers[len(command)%len(c.servers)]
	result, err := s.client().ExecMachine(c.Context(), m.Ref(), hangar.ExecRequest{Command: []string{"/bin/sh", "-c", command}, Timeout: time.Minute}, hangar.ExecStreams{Stdout: &out, Stderr: &out})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", result.ExitCode, out.String())
	}
	return out.String(), err
}

func (c *cluster) packets(t *testing.T, a, b *tenant) {
	t.Helper()
	page := func(m *hangar.Machine) string {
		return fmt.Sprintf("timeout 5 call GET http://[%s]:8080/", m.PrivateIP)
	}
	for i, from := range a.machines {
		for j, to := range a.machines { // what is allowed, without which the rest says nothing
			c.await(fmt.Sprintf("a Machine of %s reaches its own on %s", c.servers[i], c.servers[j]), func() error {
				out, err := c.inside(from, page(to))
				if err == nil && !strings.Contains(out, string(to.ID)) {
					err = fmt.Errorf("answered %q", out)
				}
				return err
			})
			if out, err := c.inside(from, page(b.machines[j])); err == nil {
				t.Errorf("a Machine on %s reaches another organization's on %s: %q", c.servers[i], c.servers[j], out)
			}
		}
		c.await("the names of all Machines", func() error {
			out, err := c.inside(from, "resolve "+string(a.app)+".internal")
			for _, m := range a.machines {
				if err == nil && !strings.Contains(out, m.PrivateIP.String()) {
					err = fmt.Errorf("no %s in %s", m.PrivateIP, out)
				}
			}
			return err
		})
		for _, name := range []string{string(b.app) + ".internal", "top3.nearest.of." + string(b.app) + ".internal", string(b.machines[0].ID) + ".vm." + string(b.app) + ".internal"} {
			out, _ := c.inside(from, "resolve "+name)
			for _, m := range b.machines {
				if strings.Contains(out, m.PrivateIP.String()) {
					t.Errorf("a Machine on %s resolves %s of another organization: %s", c.servers[i], name, out)
				}
			}
		}
	}
}

func (c *cluster) tokens(t *testing.T, a, b *tenant) {
	t.Helper()
	for _, s := range c.servers {
		api := client.New(s.url(), a.token, client.WithHTTPClient(&http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{}}))
		defer api.Close()
		c.await("the token counts at "+s.String(), func() error { // it may be known a moment later
			_, err := api.App(t.Context(), a.app)
			return err
		})
		for j, m := range b.machines {
			ref := hangar.MachineRef{App: b.app, ID: m.ID}
			own := hangar.MachineRef{App: a.app, ID: m.ID}
			_, err1 := api.Machine(t.Context(), ref)
			_, err2 := api.Machine(t.Context(), own)
			_, err3 := api.Logs(t.Context(), b.app, hangar.LogQuery{Instance: m.ID})
			_, err4 := api.Logs(t.Context(), a.app, hangar.LogQuery{Instance: m.ID})
			_, err5 := api.ExecMachine(t.Context(), own, hangar.ExecRequest{Command: []string{"/bin/echo"}}, hangar.ExecStreams{})
			err6 := api.SetMachineMetadata(t.Context(), own, hangar.MetadataPair{Key: "k", Value: "v"})
			for n, err := range []error{err1, err2, err3, err5, err6} {
				if code := hangar.CodeOf(err); code != hangar.CodeNotFound && code != hangar.CodeForbidden {
					t.Errorf("%s lets another organization use a Machine on %s (%d): %v", s, c.servers[j], n, err)
				}
			}
			if page, err := api.Logs(t.Context(), a.app, hangar.LogQuery{Instance: m.ID}); err4 == nil && err == nil && len(page.Entries) > 0 {
				t.Errorf("%s shows the log of a Machine on %s to another organization", s, c.servers[j])
			}
		}
		if _, err := api.Secrets(t.Context(), b.app, hangar.SecretQuery{}); hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("%s shows secrets: %v", s, err)
		}
		m, err := api.CreateMachine(t.Context(), a.app, hangar.MachineCreate{SkipLaunch: true, Config: parse(t, idleConfig, b.image)})
		if err == nil {
			if _, err = api.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}); err == nil {
				t.Errorf("%s lets an organization run the image of another", s)
			}
		}
	}
}

// certificates tries what the certificate of one server opens at another, beside what servers need.
func (c *cluster) certificates(t *testing.T) {
	t.Helper()
	to, from := c.servers[0], c.servers[1]
	path := filepath.Join(from.dir(), "cluster", "host.pem")
	own, err := tls.LoadX509KeyPair(path, path)
	if err != nil {
		t.Fatal(err)
	}
	forged := forge(t, own)
	for _, one := range []struct {
		name         string
		certificates []tls.Certificate
		known        bool
	}{{"a server's", []tls.Certificate{own}, true}, {"none", nil, false}, {"a forged one", []tls.Certificate{forged}, false}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: one.certificates}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		ask := func(method, path string) int {
			req, err := http.NewRequestWithContext(t.Context(), method, "https://"+to.door()+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			res, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(req)
			if err != nil {
				return 0 // not even a connection
			}
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
			return res.StatusCode
		}
		refused := []int{0, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed}
		for _, path := range []string{"/", "/v1/apps", "/v1/hosts", "/v1/tokens", "/v2/", "/v2/_catalog", "/metrics", "/healthz", "/debug/pprof/", "/docs", "/prometheus/api/v1/query?query=up", "/.fly/api"} {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
				if status := ask(method, path); !slices.Contains(refused, status) {
					t.Errorf("%s certificate: %s %s is answered with %d", one.name, method, path, status)
				}
			}
		}
		for _, path := range []string{"/agent/v1/NoMethod", "/agent/v1/../../v1/apps"} {
			if status := ask(http.MethodPost, path); !slices.Contains(append(refused, http.StatusMovedPermanently, http.StatusTemporaryRedirect), status) {
				t.Errorf("%s certificate: %s is answered with %d", one.name, path, status)
			}
		}
		for _, path := range []string{"/agent/v1/Machine", "/etcdserverpb.KV/Range", "/raft"} {
			if status := ask(http.MethodPost, path); !one.known && status != 0 && status != http.StatusForbidden {
				t.Errorf("%s certificate: %s is answered with %d", one.name, path, status)
			}
			if status := ask(http.MethodGet, path); status == http.StatusOK {
				t.Errorf("%s certificate: GET %s is answered", one.name, path)
			}
		}
	}
	// The API and the edge take no certificate for a token.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own}, ServerName: "api." + domain}}
	defer transport.CloseIdleConnections()
	for _, host := range []string{"api.", "registry.", "metrics."} {
		for _, path := range []string{"/v1/hosts", "/metrics", "/v2/", "/prometheus/api/v1/query?query=up"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+to.address()+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host + domain
			res, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(req)
			if err != nil {
				continue
			}
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				t.Errorf("%s%s%s answers the certificate of a server", host, domain, path)
			}
		}
	}
}

// forge makes a certificate that says what another says, and that no authority has signed.
func forge(t *testing.T, of tls.Certificate) tls.Certificate {
	t.Helper()
	leaf, err := x509.ParseCertificate(of.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: leaf.Subject.CommonName}, DNSNames: leaf.DNSNames, URIs: slices.Clone[[]*url.URL](leaf.URIs),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, KeyUsage: leaf.KeyUsage, ExtKeyUsage: leaf.ExtKeyUsage,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
