package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Path is where a Handler is mounted.
const Path = "/agent/v1/"

const (
	contentType = "application/x-hangar-frames"

	// maxTries is how often a call is made whose answer is lost and that may be repeated, and
	// retryWindow how long after it began: beyond, the peer is silent and not just restarted.
	maxTries    = 3
	retryWindow = time.Second
	retryPause  = 20 * time.Millisecond
)

// The times in which a Transport finds out that a host is away, two seconds in all.
const (
	dialTimeout = time.Second // of TCP, and again of TLS
	pingAfter   = time.Second // of silence
	pingTimeout = 900 * time.Millisecond
)

// Transport returns the transport to one host: HTTP/2 over one connection, unless that has all the
// streams that it may have, with pings that find out when the host is silent. tls verifies the
// host.
func Transport(config *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout, Protocols: protocols, ForceAttemptHTTP2: true,
		IdleConnTimeout: 5 * time.Minute, DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingAfter + pingTimeout,
			MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connectionWindow,
		},
	}
}

// peer is another host, to which calls are made.
type peer struct {
	host      hangar.Host
	transport http.RoundTripper
	work      *background.Group // what lives longer than a call
	circuit   circuit
	methods   map[string]method
}

func newPeer(ctx context.Context, host hangar.Host, transport http.RoundTripper) *peer {
	return &peer{host: host, transport: transport, work: background.New(ctx), methods: methods()}
}

// close ends all calls in progress.
func (p *peer) close() {
	p.work.Stop()
	p.work.Wait()
	if t, ok := p.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

func (p *peer) unreachable(cause error) error {
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: fmt.Sprintf("host %s cannot be reached", p.host.ID), Err: cause}
}

var (
	errCircuitOpen = errors.New("it could not be reached a moment ago")
	errNoAddress   = errors.New("it has no address for other hosts")
)

// lostError says that an exchange was cut off, so that its outcome is unknown.
type lostError struct{ cause error }

func (e lostError) Error() string { return "connection lost: " + e.cause.Error() }
func (e lostError) Unwrap() error { return e.cause }

// exchange makes a request and returns the body of the answer. ctx is of the whole exchange.
func (p *peer) exchange(ctx context.Context, name string, body io.Reader) (io.ReadCloser, error) {
	if p.host.Address == "" {
		return nil, p.unreachable(errNoAddress)
	}
	if !p.circuit.allow() {
		return nil, p.unreachable(errCircuitOpen)
	}
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		connected.Store(true)
		p.circuit.succeed()
	}})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, "https://"+p.host.Address+Path+name, body)
	if err != nil {
		p.circuit.abandon()
		return nil, p.unreachable(err)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := p.transport.RoundTrip(req)
	switch {
	case err == nil && res.StatusCode == http.StatusOK:
		return res.Body, nil
	case err == nil:
		_ = res.Body.Close()
		return nil, p.refused(name, res.StatusCode)
	case connected.Load():
		return nil, p.failure(ctx, lostError{err})
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		p.circuit.abandon() // the caller gave up, for whatever cause
	default:
		p.circuit.fail()
	}
	return nil, p.failure(ctx, err)
}

// failure is the error of an exchange that has failed: that the caller gave up, or that the host is
// unreachable.
func (p *peer) failure(ctx context.Context, err error) error {
	if ended := context.Cause(ctx); ended != nil {
		return fmt.Errorf("host %s did not answer: %w", p.host.ID, ended)
	}
	return p.unreachable(err)
}

// refused is the error of an answer that no Handler of this version gives to a host of the cluster.
func (p *peer) refused(name string, status int) error {
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return errOtherVersion(name, "it does not know %s")
	case http.StatusTooManyRequests:
		return hangar.Errorf(hangar.CodeUnavailable, "", "host %s has too many calls of this host under way", p.host.ID)
	default:
		return p.unreachable(fmt.Errorf("it answers with the status %d", status))
	}
}

// once makes a call and returns the payload of its result.
func (p *peer) once(ctx context.Context, name string, call []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var body bytes.Buffer
	if err := writeFrame(&body, kindCall, call); err != nil {
		return nil, err
	}
	answer, err := p.exchange(ctx, name, &body)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	k, payload, err := readFrame(answer, maxAnswer)
	switch {
	case err != nil:
		return nil, p.failure(ctx, lostError{err})
	case k == kindResult:
		return payload, nil
	case k == kindError:
		return nil, rebuilt(payload)
	default:
		return nil, p.unreachable(fmt.Errorf("unexpected frame %q", k))
	}
}

// ask makes a call. One that may be repeated is made again when its answer is lost.
func ask[R any](ctx context.Context, p *peer, name string, args ...any) (R, error) {
	var result R
	call, err := encodeCall(ctx, args)
	if err != nil {
		return result, err
	}
	began := time.Now()
	for try := 1; ; try++ {
		payload, err := p.once(ctx, name, call)
		if err == nil {
			if err := decode(payload, &result); err != nil {
				return result, hangar.Errorf(hangar.CodeInternal, "", "the answer of host %s cannot be read: %w", p.host.ID, err)
			}
			return result, nil
		}
		_, lost := errors.AsType[lostError](err)
		if !lost || !p.methods[name].repeats || try == maxTries || time.Since(began) > retryWindow {
			return result, err
		}
		if err := pause.For(ctx, retryPause); err != nil {
			return result, p.failure(ctx, err)
		}
	}
}

// order makes a call without a result.
func order(ctx context.Context, p *peer, name string, args ...any) error {
	_, err := ask[struct{}](ctx, p, name, args...)
	return err
}
