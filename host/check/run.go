package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

// run probes a Machine once. It returns the Machine's answer, or why it counts as failed.
func run(ctx context.Context, d Dialer, m *machine, spec *hangar.NamedCheck) (string, error) {
	var output string
	var err error
	if spec.Type == "http" {
		output, err = runHTTP(ctx, d, m, spec)
	} else {
		output, err = runTCP(ctx, d, m, spec)
	}
	if err != nil && (errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)) {
		err = fmt.Errorf("no answer from port %d within %s", spec.Port, spec.Timeout)
	}
	return output, err
}

func runTCP(ctx context.Context, d Dialer, m *machine, spec *hangar.NamedCheck) (string, error) {
	conn, err := d.Dial(ctx, m.id, spec.Port)
	if err != nil {
		return "", err
	}
	_ = conn.Close() // nothing was sent
	return "Success", nil
}

// maxHeaderBytes bounds a Machine's answer before its body.
const maxHeaderBytes = 64 << 10

// bufferBytes is enough for most requests and answers.
const bufferBytes = 1 << 10

// userAgent is what an App finds in the log of its requests.
const userAgent = "hangar-health-check"

// runHTTP asks once: redirects are an answer like any other, and only 2xx passes.
func runHTTP(ctx context.Context, d Dialer, m *machine, spec *hangar.NamedCheck) (string, error) {
	request, err := newRequest(ctx, m, spec)
	if err != nil {
		return "", err
	}
	// A transport of its own: a check begins with a new connection every time.
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx, m.id, spec.Port) },
		TLSClientConfig:        &tls.Config{ServerName: spec.ServerName, InsecureSkipVerify: spec.SkipVerify}, //nolint:gosec // G402: the owner of the Machine asks for it
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		ReadBufferSize:         bufferBytes,
		WriteBufferSize:        bufferBytes,
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // it is not read to its end
	// The status has decided; the part of the body that comes in time is kept.
	body, _ := io.ReadAll(io.LimitReader(response.Body, hangar.MaxCheckOutput))
	text := strings.TrimSpace(string(body))
	if response.StatusCode/100 != 2 {
		if text != "" {
			text = ": " + text
		}
		return "", errors.New(response.Status + text)
	}
	if text == "" {
		text = response.Status
	}
	return text, nil
}

func newRequest(ctx context.Context, m *machine, spec *hangar.NamedCheck) (*http.Request, error) {
	scheme := "http"
	if spec.TLS {
		scheme = "https"
	}
	host := spec.ServerName
	if host == "" {
		host = m.addr.String()
	}
	target, err := url.Parse(scheme + "://" + net.JoinHostPort(host, strconv.Itoa(spec.Port)) + spec.Path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, spec.Method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", userAgent)
	for _, h := range spec.Headers {
		if strings.EqualFold(h.Name, "Host") {
			if len(h.Values) > 0 {
				request.Host = h.Values[0]
			}
			continue
		}
		request.Header.Del(h.Name)
		for _, v := range h.Values {
			request.Header.Add(h.Name, v)
		}
	}
	return request, nil
}

// clean makes text that a Machine may have chosen safe to keep and to print.
func clean(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
	if len(text) <= hangar.MaxCheckOutput {
		return text
	}
	end := hangar.MaxCheckOutput
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
