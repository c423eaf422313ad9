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
	"github.com/hangar-platform/hangar/internal/flight"
)

// challengePath is where an ACME server looks for the answer of RFC 8555, section 8.3.
const challengePath = "/.well-known/acme-challenge/"

// challenges has the answers for the ACME server while it validates names.
type challenges struct {
	answers sync.Map // answerKey -> key authorization
	pairs   sync.Map // host name -> *tls.Certificate
}

// answerKey identifies an answer of http-01.
type answerKey struct{ host, token string }

// challengeWait bounds how long a validation waits for the challenge of another edge.
const challengeWait = 2 * time.Second

// challengeCertificate returns the certificate of RFC 8737 for the name of a handshake, even if
// another edge has placed the order.
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
			c.log.WarnContext(ctx, "the challenge of another edge cannot be used", keyName, string(name), keyError, err)
		}
	}
	return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("No validation of %.100q is under way", hello.ServerName)}
}

// elsewhere returns the challenge that another edge has published for a name. Anyone can cause
// a call, so it reads the state only for names with an order in flight, and once for concurrent callers.
func (c *Certs) elsewhere(ctx context.Context, name hangar.Hostname) (challenge, bool) {
	if !c.shared.used() {
		return challenge{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, challengeWait)
	defer cancel()
	if !c.shared.ordered(ctx, name) {
		return challenge{}, false
	}
	n, err := flight.Do(ctx, &c.shared.reading, string(name), func() (note, error) { return c.shared.note(ctx, name) })
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		c.log.WarnContext(ctx, "challenges of other edges are not known", keyName, string(name), keyError, err)
	}
	return n.Challenge, err == nil && n.Challenge.Authorization != ""
}

// Challenge answers an ACME server that validates a name over HTTP. It returns false, without an
// answer, for any other request.
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
