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

// certificate is the one of RFC 8737 for a name.
func (c *challenges) certificate(name string) (*tls.Certificate, error) {
	if pair, ok := c.pairs.Load(strings.ToLower(name)); ok {
		return pair.(*tls.Certificate), nil
	}
	return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("No validation of %.100q is under way", name)}
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
	answer, ok := c.challenges.answers.Load(answerKey{strings.ToLower(host), token})
	if !ok {
		return false
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = io.WriteString(w, answer.(string)) // the client is gone
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
func (s httpSolver) Present(_ context.Context, ch acme.Challenge) error {
	s.answers.Store(answerKeyOf(ch), ch.KeyAuthorization)
	return nil
}

// CleanUp implements acmez.Solver.
func (s httpSolver) CleanUp(_ context.Context, ch acme.Challenge) error {
	s.answers.Delete(answerKeyOf(ch))
	return nil
}

// Present implements acmez.Solver.
func (s tlsSolver) Present(_ context.Context, ch acme.Challenge) error {
	pair, err := acmez.TLSALPN01ChallengeCert(ch)
	if err == nil {
		s.pairs.Store(strings.ToLower(ch.Identifier.Value), pair)
	}
	return err
}

// CleanUp implements acmez.Solver.
func (s tlsSolver) CleanUp(_ context.Context, ch acme.Challenge) error {
	s.pairs.Delete(strings.ToLower(ch.Identifier.Value))
	return nil
}
