// Package join lets a server into a cluster: the server's request to a host of the cluster, and the
// answer.
//
// Promises. The server sends its token only to a host of the cluster that the token names. An
// invalid token is refused in the same words whatever is wrong with it, and attempts are bounded
// for each address and in all. An attempt may be repeated with the same key, until the server has
// had its answer.
//
// Concurrency. A Handler is safe for concurrent use.
package join

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// Path is where servers join, by POST.
const Path = "/cluster/join"

// The bounds of messages.
const (
	maxRequest = 16 << 10
	maxGrant   = 1 << 20
	callLimit  = 30 * time.Second
)

// The paces of attempts.
var (
	paceOfAddress = ratelimit.Pace{PerSecond: 1. / 6, Burst: 10}
	paceOfAll     = ratelimit.Pace{PerSecond: 5, Burst: 50}
)

// Application is a server's request, beside its token as a bearer token.
type Application struct {
	Host    hangar.HostID `json:"host"`
	Name    string        `json:"name,omitempty"`
	Address string        `json:"address"` // host:port where other hosts reach it
	Request string        `json:"request"` // for a certificate, in PEM
	Domain  string        `json:"domain"`  // below which Apps have their names
}

// Grant is the answer.
type Grant struct {
	Certificate  string   `json:"certificate"`       // of the host and of the authority, in PEM
	AuthorityKey string   `json:"authority_key"`     // in PEM
	Keyset       []byte   `json:"keyset"`            // the file of package keyset
	Endpoints    []string `json:"endpoints"`         // URLs of the cluster state
	Members      int      `json:"members,omitempty"` // of the state at most; 0: as usual
}

// Config is what a Handler needs.
type Config struct {
	Identity  *authority.Identity
	Registrar hangar.HostRegistrar
	Keyset    func() ([]byte, error) // reads the file
	Endpoints func() []string
	Members   int // of the state at most; 0: as usual
	Domain    string
	Log       *slog.Logger
	Now       func() time.Time
}

// Handler lets servers join.
type Handler struct {
	cfg       Config
	addresses *ratelimit.Limiter[netip.Addr]
	all       *ratelimit.Limiter[struct{}]
}

// NewHandler returns a Handler for Path.
func NewHandler(cfg Config) *Handler {
	return &Handler{
		cfg: cfg, addresses: ratelimit.New[netip.Addr](10_000, paceOfAddress.Refill(), cfg.Now),
		all: ratelimit.New[struct{}](1, paceOfAll.Refill(), cfg.Now),
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	grant, err := h.answer(w, r)
	if err != nil {
		h.cfg.Log.Warn("a server was not let into the cluster", "from", r.RemoteAddr, "error", err)
		refuse(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(grant) // the server repeats what it has no answer to
}

// statuses are those of the errors that a server can do something about.
var statuses = map[hangar.Code]int{
	hangar.CodeInvalid: http.StatusBadRequest, hangar.CodeUnauthenticated: http.StatusUnauthorized, hangar.CodeConflict: http.StatusConflict,
	hangar.CodeExhausted: http.StatusTooManyRequests, hangar.CodeUnavailable: http.StatusServiceUnavailable,
}

// refusal is the body of an answer that is no Grant.
type refusal struct {
	Error string `json:"error"`
}

func refuse(w http.ResponseWriter, err error) {
	status, text := http.StatusInternalServerError, "the server cannot let others join at the moment; its log says why"
	var known *hangar.Error
	if errors.As(err, &known) && statuses[known.Code] != 0 {
		status, text = statuses[known.Code], known.Message
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(refusal{text}) // a client that is gone needs no answer
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request) (Grant, error) {
	if r.Method != http.MethodPost {
		return Grant{}, hangar.Errorf(hangar.CodeInvalid, "", "servers join by POST")
	}
	if err := h.pace(r); err != nil {
		return Grant{}, err
	}
	text, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	token, err := authority.ParseToken(text)
	if err != nil {
		return Grant{}, &hangar.Error{Code: hangar.CodeUnauthenticated, Message: err.Error()}
	}
	var in Application
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return Grant{}, &hangar.Error{Code: hangar.CodeInvalid, Message: "the request cannot be read: the versions of the servers may be too different", Err: err}
	}
	request, err := authority.ParseRequest([]byte(in.Request))
	if err != nil {
		return Grant{}, hangar.Errorf(hangar.CodeInvalid, "", "request for a certificate: %v", err)
	}
	if _, err := hangar.ParseHostID(string(in.Host)); err != nil {
		return Grant{}, err
	}
	if err := CheckAddress(in.Address); err != nil {
		return Grant{}, hangar.Errorf(hangar.CodeInvalid, "", "address %q: %v", in.Address, err)
	}
	if in.Domain != h.cfg.Domain {
		return Grant{}, hangar.Errorf(hangar.CodeInvalid, "", "the domain of the platform is %s, and that of the server is %q: give it --domain %[1]s", h.cfg.Domain, in.Domain)
	}
	err = h.cfg.Registrar.AdmitHost(r.Context(), hangar.HostApplicant{
		Token: token.ID, Digest: token.Digest(), Host: in.Host, Name: in.Name, Address: in.Address, Key: authority.KeyDigest(request),
	})
	if err != nil {
		return Grant{}, err
	}
	cert, err := h.cfg.Identity.Authority().Sign(request, in.Host, h.cfg.Now())
	if err != nil {
		return Grant{}, err
	}
	key, err := h.cfg.Identity.Authority().Key()
	if err != nil {
		return Grant{}, err
	}
	keys, err := h.cfg.Keyset()
	if err != nil {
		return Grant{}, err
	}
	h.cfg.Log.Info("a server has joined the cluster", "host", in.Host, "name", in.Name, "address", in.Address, "token", token.ID)
	return Grant{Certificate: string(cert), AuthorityKey: string(key), Keyset: keys, Endpoints: h.cfg.Endpoints(), Members: h.cfg.Members}, nil
}

// pace refuses who tries too often.
func (h *Handler) pace(r *http.Request) error {
	from := netip.Addr{}
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		from = connlimit.ClientOf(a.Addr())
	}
	wait := h.addresses.Take(from, paceOfAddress)
	if wait == 0 {
		wait = h.all.Take(struct{}{}, paceOfAll)
	}
	if wait > 0 {
		return hangar.Errorf(hangar.CodeExhausted, "", "too many attempts to join: try again in %s", wait.Round(time.Second)+time.Second)
	}
	return nil
}

// CheckAddress refuses what other hosts cannot connect to.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() || host == "" {
		return errors.New("other hosts cannot connect to it: it names no server")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.ContainsAny(host, "/?#@") {
		return errors.New("must be HOST:PORT")
	}
	return nil
}

// ErrRefused says that the cluster has refused, and that a repeated request would be refused, too.
var ErrRefused = errors.New("the cluster does not let this server join")

// Apply sends an application with a token to a host of the cluster, at its URL, and returns the
// Grant that it has checked, with the authority.
func Apply(ctx context.Context, at string, token authority.Token, in Application, now func() time.Time) (Grant, *authority.Authority, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return Grant{}, nil, fmt.Errorf("%w: %q must be like https://HOST:4281", ErrRefused, at)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return Grant{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath(Path).String(), bytes.NewReader(body))
	if err != nil {
		return Grant{}, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token.String())
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: authority.PinnedConfig(token.Authority, now), DisableKeepAlives: true, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if errors.Is(err, authority.ErrStranger) {
		return Grant{}, nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return Grant{}, nil, fmt.Errorf("join the cluster: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxGrant))
	if err != nil {
		return Grant{}, nil, fmt.Errorf("join the cluster: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		var why refusal
		if json.Unmarshal(text, &why) != nil || why.Error == "" { // of a server that starts
			return Grant{}, nil, fmt.Errorf("join the cluster: HTTP %s", res.Status)
		}
		if res.StatusCode < http.StatusInternalServerError && res.StatusCode != http.StatusTooManyRequests {
			return Grant{}, nil, fmt.Errorf("%w: %s", ErrRefused, why.Error)
		}
		return Grant{}, nil, fmt.Errorf("join the cluster: %s", why.Error)
	}
	var grant Grant
	if err := json.Unmarshal(text, &grant); err != nil {
		return Grant{}, nil, fmt.Errorf("join the cluster: read the answer: %w", err)
	}
	a, err := authority.FromChain([]byte(grant.Certificate), []byte(grant.AuthorityKey), token.Authority)
	if err == nil && (len(grant.Endpoints) == 0 || len(grant.Keyset) == 0) {
		err = errors.New("it is not complete")
	}
	if err != nil {
		return Grant{}, nil, fmt.Errorf("join the cluster: the answer: %w", err)
	}
	return grant, a, nil
}
