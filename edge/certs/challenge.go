package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/hangar-platform/hangar"
)

// challengePath is where an ACME server looks for the answer of RFC 8555, section 8.3.
const challengePath = "/.well-known/acme-challenge/"

// challenges are what the ACME server is to find while it validates names.
type challenges struct {
	answers sync.Map // answerKey -> key authorization
	pairs   sync.Map // host name -> *tls.Certificate
}

// answerKey is what a request for an answer has to name.
type answerKey struct{ host, token string }

// challengeWait bounds how long a validation waits for what another edge has to show.
const challengeWait = 2 * time.Second

// challengeCertificate is the certificate of RFC 8737 for the name of a handshake, also of an order of
// another edge.
func (c *Certs) challengeCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair, ok := c.challenges.pairs.Load(strings.ToLower(hello.ServerName)); ok {
		return pair.(*tls.Certificate), nil
	}
	if name, ok := serverName(hello.ServerName); ok && hello.Context() != nil {
		ctx := hello.Context()
		if ch, ok := c.elsewhere(ctx, name); ok {
			pair, err := acmez.TLSALPN01ChallengeCert(acme.Challenge{
				Identifier: acme.Identifier{Type: "dns", Value: string(name)}, KeyAuthorization: ch.Authorization,
			})
			if err == nil {
				return pair, nil
			}
			c.log.WarnContext(ctx, "the challenge of another edge is of no use", keyName, string(name), keyError, err)
		}
	}
	return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("No validation of %.100q is under way", hello.ServerName)}
}

// elsewhere returns what another edge shows the ACME server about a name. The state is asked only about
// names that are ordered here.
func (c *Certs) elsewhere(ctx context.Context, name hangar.Hostname) (challenge, bool) {
	if !c.shared.used() || !c.orderable(name) {
		return challenge{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, challengeWait)
	defer cancel()
	n, err := c.shared.note(ctx, name)
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		c.log.WarnContext(ctx, "challenges of other edges are not known", keyName, string(name), keyError, err)
	}
	return n.Challenge, err == nil && n.Challenge.Authorization != ""
}

// Challenge answers an ACME server that validates a name over HTTP, and reports whether the
// request was such a one. Others are left as they are.
func (c *Certs) Challenge(w http.ResponseWriter, r *http.Request) bool {
	token, ok := strings.CutPrefix(r.URL.Path, challengePath)
	if !ok || (r.Method != http.MethodGet && r.Method != http.MethodHead) {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	answer := ""
	if own, ok := c.challenges.answers.Load(answerKey{strings.ToLower(host), token}); ok {
		answer = own.(string)
	} else if name, ok := serverName(host); ok {
		if ch, ok := c.elsewhere(r.Context(), name); ok && ch.Token == token {
			answer = ch.Authorization
		}
	}
	if answer == "" {
		return false
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = io.WriteString(w, answer) // the client is gone
	return true
}

// httpSolver and tlsSolver let the edge answer; they do not listen.
type (
	httpSolver struct{ *challenges }
	tlsSolver  struct{ *challenges }
)

var (
	_ acmez.Solver = httpSolver{}
	_ acmez.Solver = tlsSolver{}
)

func answerKeyOf(ch acme.Challenge) answerKey {
	return answerKey{strings.ToLower(ch.Identifier.Value), ch.Token}
}

// Present implements acmez.Solver.
func (s httpSolver) Present(ctx context.Context, ch acme.Challenge) error {
	s.answers.Store(answerKeyOf(ch), ch.KeyAuthorization)
	return show(ctx, ch)
}

// CleanUp implements acmez.Solver.
func (s httpSolver) CleanUp(_ context.Context, ch acme.Challenge) error {
	s.answers.Delete(answerKeyOf(ch))
	return nil
}

// Present implements acmez.Solver.
func (s tlsSolver) Present(ctx context.Context, ch acme.Challenge) error {
	pair, err := acmez.TLSALPN01ChallengeCert(ch)
	if err != nil {
		return err
	}
	s.pairs.Store(strings.ToLower(ch.Identifier.Value), pair)
	return show(ctx, ch)
}

// CleanUp implements acmez.Solver.
func (s tlsSolver) CleanUp(_ context.Context, ch acme.Challenge) error {
	s.pairs.Delete(strings.ToLower(ch.Identifier.Value))
	return nil
}
