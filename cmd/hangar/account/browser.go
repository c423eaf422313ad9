package account

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const (
	// browserTimeout is how long a user may take to sign in with a browser.
	browserTimeout = 10 * time.Minute
	headerTimeout  = 5 * time.Second
)

// Pages that the browser shows after the sign-in.
const (
	signedInPage = "You are signed in. Close this page and continue in the terminal.\n"
	refusedPage  = "You are not signed in. The terminal shows the reason.\n"
)

// arrival is the result with which the browser comes back.
type arrival struct {
	code string
	err  error
}

// signInByBrowser returns the token of a user who signs in with a browser on this computer (RFC 8252,
// section 7.3). The platform redirects the browser to a port of this process, with a code that
// signInByBrowser exchanges for the token.
func (c commands) signInByBrowser(ctx context.Context, p *client.Client, open bool) (hangar.Sensitive, error) {
	ctx, cancel := context.WithTimeout(ctx, browserTimeout)
	defer cancel()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return hangar.Sensitive{}, fmt.Errorf("wait for the browser: %w", err)
	}
	state, verifier := rand.Text(), rand.Text()+rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	redirectURI := "http://" + listener.Addr().String() + "/"
	arrived := make(chan arrival, 1)
	server := &http.Server{Handler: awaitBrowser(state, arrived), ReadHeaderTimeout: headerTimeout}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with the login
	}()
	defer func() { <-served }()
	defer func() { _ = server.Shutdown(ctx) }() // waits until the page is sent

	at := p.AuthorizeURL(redirectURI, state, base64.RawURLEncoding.EncodeToString(sum[:]))
	if open && c.openBrowser(at) == nil {
		fmt.Fprintf(c.Stderr, "Continue in the browser. If none opens, open this page:\n\n  %s\n\n", at)
	} else {
		fmt.Fprintf(c.Stderr, "Open this in a browser on this computer:\n\n  %s\n\n", at)
	}
	select {
	case back := <-arrived:
		if back.err != nil {
			return hangar.Sensitive{}, back.err
		}
		return p.ExchangeCode(ctx, hangar.NewSensitive(back.code), hangar.NewSensitive(verifier), redirectURI)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return hangar.Sensitive{}, hangar.Errorf(hangar.CodeTimeout, "", "the browser did not sign in within %s", browserTimeout)
		}
		return hangar.Sensitive{}, ctx.Err()
	}
}

// awaitBrowser takes the first request that has the state. Other requests to the port have no effect.
func awaitBrowser(state string, arrived chan<- arrival) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		back, shown := arrival{code: q.Get("code")}, signedInPage
		if back.code == "" {
			shown = refusedPage
			back.err = hangar.Errorf(hangar.CodeForbidden, "", "the sign-in was refused: %.200q", cmp.Or(q.Get("error_description"), q.Get("error"), "no code"))
		}
		select {
		case arrived <- back:
			_, _ = io.WriteString(w, shown)
		default: // a second request
			w.WriteHeader(http.StatusConflict)
		}
	})
	return mux
}

// openBrowser opens a page, and collects the exit status of the browser while the command runs.
func (c commands) openBrowser(page string) error {
	ended, err := c.OpenBrowser(page)
	if err == nil {
		go func() { _ = ended() }()
	}
	return err
}

// endToken revokes a token that came from signing in, and warns if it stays valid.
func (c commands) endToken(ctx context.Context, x cli.SavedContext, token string) {
	roots, err := x.Roots()
	if err == nil {
		p := client.New(x.URL, token, client.WithRootCAs(roots))
		defer p.Close()
		err = p.SignOut(ctx)
	}
	switch hangar.CodeOf(err) {
	case "", hangar.CodeUnauthenticated: // no longer valid
	case hangar.CodeForbidden:
		fmt.Fprintln(c.Stderr, "The token does not come from signing in as a user, and stays valid: `hangar tokens revoke` revokes it.")
	default:
		fmt.Fprintf(c.Stderr, "The token is removed here, but stays valid until it expires: the platform could not be reached (%v).\n", err)
	}
}
