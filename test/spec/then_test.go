package spec_test

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// sharesNetwork compares the first three groups of private addresses, which are those of the
// network.
func sharesNetwork(t *testing.T, x *exchange) {
	network := func(name string) string { return strings.Join(strings.Split(x.value(name), ":")[:3], ":") }
	if network("first") != network("second") || network("first") == network("other") {
		t.Errorf("addresses: %s and %s in one network, %s in another", x.value("first"), x.value("second"), x.value("other"))
	}
}

// integer is the value of a variable that was bound as one.
func (x *exchange) integer(name string) int {
	x.t.Helper()
	n, err := strconv.Atoi(x.value(name))
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

// newestFirst compares the times of the events of the row's Machine.
func newestFirst(t *testing.T, x *exchange) {
	a := x.send(step{method: http.MethodGet, path: x.value("machine") + "/events?limit=50"})
	var events []struct {
		ID        string `json:"id"`
		Timestamp int64  `json:"timestamp"`
	}
	if err := json.Unmarshal(a.body, &events); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(events); i++ {
		if events[i].Timestamp > events[i-1].Timestamp || events[i].ID >= events[i-1].ID {
			t.Errorf("after event %v comes the newer %v", events[i-1], events[i])
		}
	}
}

// verifies checks the signature of a new identity token of the row's Machine against the keys at
// the row's issuer.
func verifies(t *testing.T, x *exchange) {
	token := x.send(step{method: http.MethodPost, path: x.value("machine") + "/oidc_token"}).body
	var set struct {
		Keys []struct {
			N string `json:"n"`
			E string `json:"e"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(x.send(step{method: http.MethodGet, path: x.value("keys")}).body, &set); err != nil {
		t.Fatal(err)
	}
	number := func(text string) *big.Int {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return new(big.Int).SetBytes(b)
	}
	end := strings.LastIndexByte(string(token), '.')
	sum := sha256.Sum256(token[:end])
	signature := number(string(token[end+1:]))
	for _, k := range set.Keys {
		key := &rsa.PublicKey{N: number(k.N), E: int(number(k.E).Int64())}
		if rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature.FillBytes(make([]byte, key.Size()))) == nil {
			return
		}
	}
	t.Errorf("none of %d keys verifies %s", len(set.Keys), token)
}

// withOpenRequest runs requests while another one is open in the row's first Machine.
func withOpenRequest(t *testing.T, x *exchange, requests string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.fill("http://$app.hangar.localhost/cgi-bin/slow"), nil)
	if err != nil {
		t.Fatal(err)
	}
	open.Go(func() {
		if res, err := x.edge.Do(req); err == nil {
			res.Body.Close()
		}
	})
	x.run(`EXEC $machine ["sh", "-c", "until [ -s /in ]; do sleep 0.05; done; cat /in"]
		` + requests)
}

// handshake speaks no newer version of TLS than this with the row's App.
func (x *exchange) handshake(newest uint16) error {
	x.t.Helper()
	edge := x.edge.Transport.(*http.Transport)
	host := x.fill("$app.hangar.localhost")
	conn, err := edge.DialContext(x.t.Context(), "tcp", net.JoinHostPort(host, "443"))
	if err != nil {
		x.t.Fatal(err)
	}
	defer conn.Close()
	config := edge.TLSClientConfig.Clone()
	config.ServerName, config.MaxVersion = host, newest
	return tls.Client(conn, config).HandshakeContext(x.t.Context())
}
