package replica_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// elsewhere runs a statement on a copy of a database, and returns its transaction.
func elsewhere(t *testing.T, n *testNode, db, statement string) []byte {
	t.Helper()
	old, _ := n.export(db)
	last := n.Find(db).Last()
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(statement); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	fresh, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := int(last.PageSize)
	tx := txlog.Tx{Post: fullSum(fresh, last.PageSize), Header: ltx.Header{
		PageSize: last.PageSize, Commit: uint32(len(fresh) / size), MinTXID: last.Pos.TXID + 1, MaxTXID: last.Pos.TXID + 1,
		PreApplyChecksum: last.Pos.PostApplyChecksum, Timestamp: time.Now().UnixMilli(), NodeID: 7,
	}}
	for at := 0; at < len(fresh); at += size {
		if at >= len(old) || !bytes.Equal(old[at:at+size], fresh[at:at+size]) {
			tx.Pages = append(tx.Pages, txlog.Page{Number: uint32(at/size) + 1, Data: fresh[at : at+size]})
		}
	}
	b, err := (&txlog.Encoder{}).Append(nil, &tx)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHalt: another node writes to the primary's database, while no program of the primary may.
func TestHalt(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			n := startNode(t, nodeConfig{})
			n.ready()
			other := startNode(t, nodeConfig{primary: n.url})
			other.ready()
			n.exec("app.db", journal, "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			program := startWorker(t, workerJob{Path: n.path("app.db"), Register: true})
			if got := program.ask("x"); !strings.HasPrefix(got, "acked") {
				t.Fatal(got)
			}
			status, text := n.post("/halt?name=app.db&id=one")
			var l replica.Halted
			if err := json.Unmarshal([]byte(text), &l); err != nil || status != http.StatusOK {
				t.Fatal(status, text, err)
			}
			if pos := l.Pos.TXID + "/" + l.Pos.Checksum; pos != n.Find("app.db").Pos().String() || l.Epoch != 1 || time.Until(l.Expires) < time.Second {
				t.Errorf("%+v", l)
			}
			if got := program.ask("y"); !strings.HasPrefix(got, "refused") {
				t.Error("a program writes beside the holder of the lock: ", got)
			}
			send := func(lock string, epoch int, b []byte) int {
				resp, err := http.Post(fmt.Sprintf("%s/tx?name=app.db&lockID=%s&epoch=%d", n.url, lock, epoch), "", bytes.NewReader(b))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				return resp.StatusCode
			}
			b := elsewhere(t, n, "app.db", "INSERT INTO t VALUES('from elsewhere')")
			before := n.Find("app.db").Pos().TXID
			for _, c := range []struct {
				lock  string
				epoch int
				b     []byte
				want  int
			}{{"two", 1, b, 409}, {"one", 2, b, 409}, {"one", 1, b[:99], 400}, {"one", 1, b, 200}, {"one", 1, b, 409}} {
				if got := send(c.lock, c.epoch, c.b); got != c.want {
					t.Errorf("lock %s of epoch %d: %d, want %d", c.lock, c.epoch, got, c.want)
				}
			}
			if got := n.Find("app.db").Pos().TXID; got != before+1 {
				t.Errorf("transaction %s after %s", got, before)
			}
			same(t, n, other, "app.db")
			release := func(id string) int {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, n.url+"/halt?name=app.db&id="+id, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				return resp.StatusCode
			}
			if a, b, c := release("two"), release("one"), release("one"); a != 404 || b != 200 || c != 404 {
				t.Error(a, b, c)
			}
			if got := send("one", 1, elsewhere(t, n, "app.db", "INSERT INTO t VALUES('late')")); got != 409 {
				t.Error("after the lock: ", got)
			}
			if got := program.ask("y"); got != "acked x" {
				t.Error("after the lock: ", got)
			}
			same(t, n, other, "app.db")
		})
	}
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// node returns a certificate of a node on loopback.
func (a *authority) node() tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestTLS: a replica follows over TLS, and nodes without a certificate, or with one of another
// authority, cannot.
func TestTLS(t *testing.T) {
	a := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	client := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: pool, Certificates: certs, MinVersion: tls.VersionTLS12}
	}
	primary := startNode(t, nodeConfig{with: func(c *replica.Config) {
		c.ServerTLS = &tls.Config{Certificates: []tls.Certificate{a.node()}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12}
	}})
	primary.ready()
	primary.exec("app.db", "wal", "CREATE TABLE t(v)")
	other := startNode(t, nodeConfig{primary: primary.url, with: func(c *replica.Config) { c.TLS = client(a.node()) }})
	other.ready()
	same(t, primary, other, "app.db")
	for name, c := range map[string]struct {
		config *tls.Config
		path   string
		want   int // 0: no answer
	}{
		"no certificate":       {client(), "/export?name=app.db", 403},
		"nor to follow":        {client(), "/stream", 403},
		"what is not private":  {client(), "/info", 200},
		"a certificate":        {client(a.node()), "/export?name=app.db", 200},
		"of another authority": {client(newAuthority(t).node()), "/info", 0},
		"another server":       {&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, "/info", 0},
	} {
		transport := &http.Transport{TLSClientConfig: c.config}
		got := 0
		resp, err := (&http.Client{Transport: transport}).Get(primary.url + c.path)
		if err == nil {
			got = resp.StatusCode
			resp.Body.Close()
		}
		transport.CloseIdleConnections()
		if got != c.want {
			t.Errorf("%s: %d %v, want %d", name, got, err, c.want)
		}
	}
}
