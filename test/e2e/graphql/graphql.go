// Package graphql calls the GraphQL API as existing clients do, for tests, and signs in by SSH with the certificates
// that it issues.
package graphql

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Client is how a platform is called.
type Client struct{ URL, Token string }

// Call calls an operation, and decodes its data.
func (c Client) Call(tb testing.TB, query string, input, into any) {
	tb.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": map[string]any{"input": input}})
	check(tb, err)
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, c.URL+"/graphql", bytes.NewReader(body))
	check(tb, err)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	res, err := http.DefaultClient.Do(req)
	check(tb, err)
	defer res.Body.Close()
	var answer struct {
		Data   json.RawMessage
		Errors []struct{ Message string }
	}
	check(tb, json.NewDecoder(res.Body).Decode(&answer))
	if len(answer.Errors) > 0 {
		tb.Fatalf("%s: %+v", query, answer.Errors)
	}
	check(tb, json.Unmarshal(answer.Data, into))
}

// Credential is a key with a certificate, in files of OpenSSH.
type Credential struct {
	dir    string
	signer ssh.Signer
}

// Certificate has one issued in an organization, which its id names, for an hour.
func (c Client) Certificate(tb testing.TB, orgID string, principals ...string) Credential {
	tb.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	check(tb, err)
	key, err := ssh.NewPublicKey(public)
	check(tb, err)
	var made struct{ IssueCertificate struct{ Certificate string } }
	c.Call(tb, `mutation($input: IssueCertificateInput!) { issueCertificate(input: $input) { certificate key } }`,
		map[string]any{"organizationId": orgID, "principals": principals, "validHours": 1, "publicKey": string(ssh.MarshalAuthorizedKey(key))}, &made)
	parsed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(made.IssueCertificate.Certificate))
	check(tb, err)
	plain, err := ssh.NewSignerFromKey(private)
	check(tb, err)
	signer, err := ssh.NewCertSigner(parsed.(*ssh.Certificate), plain)
	check(tb, err)
	issued := Credential{dir: tb.TempDir(), signer: signer}
	block, err := ssh.MarshalPrivateKey(private, "")
	check(tb, err)
	check(tb, os.WriteFile(filepath.Join(issued.dir, "key"), pem.EncodeToMemory(block), 0o600))
	check(tb, os.WriteFile(filepath.Join(issued.dir, "key-cert.pub"), []byte(made.IssueCertificate.Certificate+"\n"), 0o600))
	return issued
}

// Options are those of ssh and sftp.
func (c Credential) Options() []string {
	return []string{
		"-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=30",
		"-o", "UserKnownHostsFile=" + filepath.Join(c.dir, "known"), "-i", filepath.Join(c.dir, "key"),
	}
}

// Dial signs in by a connection, as a client of this process.
func (c Credential) Dial(conn net.Conn, user string) (*ssh.Client, error) {
	signed, channels, requests, err := ssh.NewClientConn(conn, "machine", &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(c.signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(signed, channels, requests), nil
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
