package hangar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dialers are the files that may open connections themselves, each with the reason why no tenant
// chooses the address. Connections for a tenant use internal/publicdial.
var dialers = map[string]string{
	"internal/publicdial/publicdial.go":     "it is the guarded dialer",
	"cmd/hangar-db/client.go":               "the user calls the node that he names",
	"cmd/hangar-guest/main.go":              "runs in a Machine, as the user who has signed in there",
	"replica/lease/etcd/etcd.go":            "the operator of a node names its etcd",
	"replica/lease/platform/platform.go":    "the socket of the Machine that the node is in",
	"replica/follow.go":                     "the operator of a node names its primary",
	"replica/backup/bucket.go":              "the operator of a node names the server of its backup, and the proxy before it",
	"replica/proxy/proxy.go":                "the operator of a node names the App behind its proxy",
	"cmd/hangar/db/node.go":                 "connects by the tunnel of the user's own client alone",
	"cluster/join/join.go":                  "the operator names the host that the server joins at",
	"client/client.go":                      "the user's own program calls the server that he names, by his proxy",
	"internal/ociimage/registry.go":         "the user's own program pushes to the registry that he names, by his proxy",
	"daemon/peers.go":                       "asks the kernel for the way to an address; nothing is sent",
	"daemon/machines.go":                    "asks the kernel for the way to an address; nothing is sent",
	"edge/certs/issuer.go":                  "the operator names the ACME server, and the proxy before it",
	"edge/proxy/statics/bucket.go":          "the operator names the service of buckets; a tenant names one below it",
	"edge/proxy/http2.go":                   "connects by the gate of a Machine's host alone",
	"host/archive/place.go":                 "the operator names the server of the archive",
	"host/check/run.go":                     "connects within the network of the Machine alone",
	"host/driver/gvisor/rpc.go":             "connects to the control socket of a sandbox of the daemon's own",
	"host/mesh/mesh.go":                     "asks the operator's name server about a host of the cluster; WireGuard calls what it answers, and no one else has its key",
	"host/network/dial.go":                  "connects to an address that the platform gave a Machine",
	"host/network/dial_service.go":          "connects to an address that the platform gave a Machine",
	"host/wireguard/carrier/carrier.go":     "connects to the daemon's own WireGuard port on the loopback alone",
	"host/remote/peer.go":                   "connects to hosts of the cluster alone, whose records name the addresses",
	"host/volume/nbd/nbd.go":                "connects to a socket file of the daemon's own",
	"host/volume/storaged/qmp.go":           "connects to a socket file of the daemon's own",
	"internal/keeper/client.go":             "connects to a socket file of the daemon's own",
	"control/hostnames/hostnames.go":        "asks the operator's name server about a hostname; nothing connects to what it answers",
	"daemon/metrics.go":                     "connects to the cluster of VictoriaMetrics that the operator names",
	"metrics/store/connections.go":          "connects to a socket file of the daemon's own",
	"metrics/alerts/notify/webhook.go":      "connects by the guarded dialer that it is given, and by nothing without one",
	"metrics/alerts/notify/email.go":        "the operator names the mail server",
	"examples/provider/signon.go":           "a program of its own: its operator names the platform",
	"provider/check/check.go":               "the user's own program tries the server that he names",
	"provider/webhook.go":                   "a part of programs of providers, who name the platform that they connect to",
	"control/webhooks/delivery/delivery.go": "connects by the guarded dialer that it is given, and by nothing without one",
	"api/signon/openid/openid.go":           "the operator names the OpenID Connect provider, and the proxy before it",
	"daemon/webhooks.go":                    "connects to providers of extensions whom the operator lets be in private networks",
}

// connecting names functions and variables that connect, or that are the default of such ones, by
// package.
var connecting = map[string][]string{
	"net": {
		"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "DefaultResolver",
		"LookupHost", "LookupIP", "LookupAddr", "LookupCNAME", "LookupTXT", "LookupSRV", "LookupMX", "LookupNS", "ResolveTCPAddr", "ResolveUDPAddr",
	},
	"net/http":   {"DefaultTransport", "DefaultClient", "Get", "Post", "PostForm", "Head", "ProxyFromEnvironment", "Transport"},
	"crypto/tls": {"Dial", "DialWithDialer", "Dialer"},
}

// TestDialersAreKnown lists what connects in the programs, so that each new one is reviewed: may a
// tenant choose the address?
func TestDialersAreKnown(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := name != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata")
			if hidden || name == "test" || name == "bench" || strings.HasSuffix(d.Name(), "test") { // nothing of these is in a program
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, use := range connects(f) {
			if found[filepath.ToSlash(name)] = true; dialers[filepath.ToSlash(name)] == "" {
				t.Errorf("%s: if a tenant may say where this connects to, use internal/publicdial; otherwise add the file to dialers, with the reason", fset.Position(use.Pos()))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range dialers {
		if !found[name] {
			t.Errorf("%s connects to nothing any more: remove it from dialers", name)
		}
	}
}

// connects finds what connects in a file. A *http.Transport as a type connects to nothing. A Transport
// that is made here does, and an http.Client without a Transport takes the default one.
func connects(f *ast.File) (uses []ast.Node) {
	names := map[string]string{} // of packages, as the file calls them
	for _, spec := range f.Imports {
		imported := strings.Trim(spec.Path.Value, `"`)
		if connecting[imported] == nil {
			continue
		}
		names[path.Base(imported)] = imported
		if spec.Name != nil {
			names[spec.Name.Name] = imported
		}
	}
	of := func(n ast.Node) (imported, name string) {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return "", ""
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return "", ""
		}
		return names[x.Name], s.Sel.Name
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			imported, name := of(n.Type)
			bare := !slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
				pair, ok := e.(*ast.KeyValueExpr)
				if !ok {
					return false
				}
				key, ok := pair.Key.(*ast.Ident)
				return ok && key.Name == "Transport"
			})
			if imported == "net/http" && (name == "Transport" || name == "Client" && bare) {
				uses = append(uses, n)
			}
		case *ast.SelectorExpr:
			imported, name := of(n)
			if name != "Transport" && slices.Contains(connecting[imported], name) {
				uses = append(uses, n)
			}
		}
		return true
	})
	return uses
}

// TestConnectsIsFound: these are found, and code that connects to nothing is not.
func TestConnectsIsFound(t *testing.T) {
	const head = "package x\nimport (\n\"net\"\nweb \"net/http\"\n\"crypto/tls\"\n)\n"
	for _, c := range []struct {
		want   int
		source string
	}{
		{1, `func f() { net.Dial("tcp", "x") }`},
		{1, `func f() { (&net.Dialer{}).DialContext(nil, "", "") }`},
		{1, `var d net.Dialer`},
		{2, `func f() { web.Get("x"); web.DefaultClient.Do(nil) }`},
		{1, `var c = &web.Client{}`},
		{1, `var c = &web.Client{Timeout: 1}`},
		{0, `var c = &web.Client{Transport: given}`},
		{1, `var c = web.Client{Transport: &web.Transport{}}`},
		{1, `var c = web.Client{Transport: web.DefaultTransport}`},
		{1, `func f() { tls.Dial("tcp", "x", nil) }`},
		{0, `func f(c net.Conn, t *web.Transport) { net.Pipe() }`},
		{0, `type x struct { net.Conn; d func(net.Addr) web.Header }`},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", head+c.source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("%s: %v", c.source, err)
		}
		if got := connects(f); len(got) != c.want {
			t.Errorf("%s: %d found, want %d", c.source, len(got), c.want)
		}
	}
}
