package proxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hangar-platform/hangar/edge/proxy"
)

// recorder is a Machine that parses requests as the strictest server would, and reports everything
// that servers could parse in different ways.
type recorder struct {
	mu    sync.Mutex
	got   []string // requests, as they came
	wrong []string
}

func (r *recorder) note(to *[]string, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, fmt.Sprintf(format, args...))
}

// reset returns what was received, and forgets it.
func (r *recorder) reset() (got, wrong []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, wrong = r.got, r.wrong
	r.got, r.wrong = nil, nil
	return got, wrong
}

var (
	requestLine = regexp.MustCompile(`^[A-Z]+ (/[!-"$-~]*|\*) HTTP/1\.1$`)
	fieldLine   = regexp.MustCompile(`^[A-Za-z0-9-]+: [\t -~\x80-\xff]*$`)
)

// serve reads one request after the other, and stops at the first one that it cannot parse.
func (r *recorder) serve(_ int, c net.Conn) {
	br := bufio.NewReader(c)
	for {
		head, err := r.lines(br)
		if err != nil {
			if !errors.Is(err, io.EOF) || len(head) > 0 {
				r.note(&r.wrong, "a head is cut: %q", head)
			}
			return
		}
		if !requestLine.MatchString(head[0]) {
			r.note(&r.wrong, "the request line is %q", head[0])
			return
		}
		fields := map[string][]string{}
		for _, line := range head[1:] {
			if !fieldLine.MatchString(line) {
				r.note(&r.wrong, "a field is %q", line)
			}
			name, value, _ := strings.Cut(line, ": ")
			name = strings.ToLower(name)
			fields[name] = append(fields[name], value)
		}
		one := func(name string) string {
			if len(fields[name]) > 1 {
				r.note(&r.wrong, "there are %d fields %s", len(fields[name]), name)
			}
			return strings.Join(fields[name], "|")
		}
		if one("host") == "" {
			r.note(&r.wrong, "there is no host: %q", head)
		}
		for _, name := range []string{"platform-client-ip", "fly-client-ip"} {
			if one(name) != "127.0.0.1" {
				r.note(&r.wrong, "%s is %q", name, fields[name])
			}
		}
		for _, name := range []string{"platform-replay-src", "fly-replay-src", "proxy", "proxy-authorization", "keep-alive", "http2-settings", "trailer-part"} {
			if fields[name] != nil {
				r.note(&r.wrong, "there is a %s", name)
			}
		}
		length, coding := one("content-length"), one("transfer-encoding")
		body, trailers := "", []string(nil)
		switch {
		case length != "" && coding != "":
			r.note(&r.wrong, "the body has two lengths")
			return
		case coding == "chunked":
			b, err := io.ReadAll(httputil.NewChunkedReader(br))
			if err != nil {
				return // abandoned in the middle, as the sender knows
			}
			if trailers, err = r.lines(br); err != nil {
				return
			}
			body = string(b)
		case coding != "":
			r.note(&r.wrong, "the coding is %q", coding)
			return
		case length != "":
			n := 0
			if _, err := fmt.Sscanf(length, "%d", &n); err != nil || fmt.Sprint(n) != length {
				r.note(&r.wrong, "the length is %q", length)
				return
			}
			b := make([]byte, n)
			if _, err := io.ReadFull(br, b); err != nil {
				return
			}
			body = string(b)
		}
		for _, line := range trailers {
			if name, _, _ := strings.Cut(strings.ToLower(line), ":"); name != "x-sum" {
				r.note(&r.wrong, "a trailer is %q", line)
			}
		}
		r.note(&r.got, "%s %s %q", head[0], one("host"), body)
		_, _ = io.WriteString(c, okAnswer)
	}
}

// lines reads up to an empty line. All have to end with CR LF.
func (r *recorder) lines(br *bufio.Reader) (lines []string, err error) {
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return lines, err
		}
		text, ok := strings.CutSuffix(line, "\r\n")
		if !ok || strings.ContainsAny(text, "\r\n\x00") {
			r.note(&r.wrong, "a line is %q", line)
		}
		if text == "" {
			return lines, nil
		}
		lines = append(lines, text)
	}
}

// smuggled is a request that a client hides in another one.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: app.apps.test\r\n\r\n"

// hostile1 is a request over HTTP/1 that has fooled other proxies.
type hostile1 struct {
	name, text string
	want       string // what the Machine gets; empty: nothing
}

func hostileHTTP1() []hostile1 {
	const host = "Host: app.apps.test\r\n"
	post := func(lines, rest string) string {
		return "POST / HTTP/1.1\r\n" + host + lines + "\r\n" + rest
	}
	get := func(lines string) string { return "GET / HTTP/1.1\r\n" + host + lines + "\r\n" }
	chunked := func(rest string) string { return post("Transfer-Encoding: chunked\r\n", rest) }
	const plain = `GET / HTTP/1.1 app.apps.test ""`
	return []hostile1{
		{"CL.TE", post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"TE.CL", post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "2c\r\n"+smuggled+"\r\n0\r\n\r\n"), ""},
		{"two lengths", post("Content-Length: 0\r\nContent-Length: 50\r\n", smuggled), ""},
		{"equal lengths", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), ""},
		{"list of lengths", post("Content-Length: 5, 5\r\n", "hello"), ""},
		{"signed length", post("Content-Length: +5\r\n", "hello"), ""},
		{"negative length", post("Content-Length: -1\r\n", smuggled), ""},
		{"hexadecimal length", post("Content-Length: 0x5\r\n", "hello"), ""},
		{"huge length", post("Content-Length: 18446744073709551617\r\n", smuggled), ""},
		{"space before colon", post("Content-Length : 5\r\n", "hello"), ""},
		{"coding with a space before the colon", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding in another case", post("tRANSFER-eNCODING: CHUNKED\r\n", "1\r\nx\r\n0\r\n\r\n"), `POST / HTTP/1.1 app.apps.test "x"`},
		{"unknown coding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding twice", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"two codings", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding identity", post("Transfer-Encoding: identity\r\nContent-Length: 5\r\n", "hello"), ""},
		{"coding with a vertical tab", post("Transfer-Encoding:\vchunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding behind a line feed", post("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding behind a carriage return", post("X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"folded coding", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"+smuggled), ""},
		{"coding with HTTP/1.0", "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, ""},
		{"chunk size with a sign", chunked("+1\r\nx\r\n0\r\n\r\n"), ""},
		{"chunk size with a prefix", chunked("0x1\r\nx\r\n0\r\n\r\n"), ""},
		{"chunk size that is too large", chunked("FFFFFFFFFFFFFFFFF\r\nx\r\n0\r\n\r\n"), ""},
		{"chunk line with a bare line feed", chunked("1\nx\r\n0\r\n\r\n"), ""},
		{"chunk extension with a line feed", chunked("1;a=\n\r\nx\r\n0\r\n\r\n"), ""},
		{"chunk longer than it says", chunked("1\r\nxy\r\n0\r\n\r\n"), ""},
		{"chunk extension", chunked("1;a=\"b\"\r\nx\r\n0\r\n\r\n"), `POST / HTTP/1.1 app.apps.test "x"`},
		{"two hosts", get("Host: other.apps.test\r\n"), ""},
		{"no host", "GET / HTTP/1.1\r\n\r\n", ""},
		{"host with a user", "GET / HTTP/1.1\r\nHost: x@app.apps.test\r\n\r\n", ""},
		{"host with a path", "GET / HTTP/1.1\r\nHost: app.apps.test/x\r\n\r\n", ""},
		{"absolute target", "GET http://app.apps.test/ HTTP/1.1\r\nHost: foreign.apps.test\r\n\r\n", plain},
		{"target with a space", "GET /a b HTTP/1.1\r\n" + host + "\r\n", ""},
		{"target with a line feed", "GET /a\nb HTTP/1.1\r\n" + host + "\r\n", ""},
		{"target with a fragment", "GET /a#b HTTP/1.1\r\n" + host + "\r\n", ""},
		{"target with no slash", "GET a HTTP/1.1\r\n" + host + "\r\n", ""},
		{"star of GET", "GET * HTTP/1.1\r\n" + host + "\r\n", ""},
		{"null in a value", get("X: a\x00b\r\n"), ""},
		{"name with a space", get("X Y: a\r\n"), ""},
		{"version 1.2", "GET / HTTP/1.2\r\n" + host + "\r\n", ""},
		{"no version", "GET /\r\n" + host + "\r\n", ""},
		{"CONNECT", "CONNECT app.apps.test:80 HTTP/1.1\r\n" + host + "\r\n", ""},
		{"unknown expectation", post("Expect: 200-ok\r\nContent-Length: 1\r\n", "x"), ""},
		{"edge headers", get("Platform-Client-IP: 6.6.6.6\r\nFLY-CLIENT-IP: 6.6.6.6\r\nfly-replay-src: instance=x\r\nPlatform-Replay-Src: x\r\n"), plain},
		{"edge headers with underscores", get("Platform_Client_IP: 6.6.6.6\r\nfly_client-ip: 6.6.6.6\r\nFly_Replay_Src: x\r\nX_Forwarded_For: 6.6.6.6\r\nContent_Length: 5\r\nTransfer_Encoding: chunked\r\n"), plain},
		{"edge headers with other characters", get("Fly.Client.IP: 6.6.6.6\r\nfly!client!ip: 6.6.6.6\r\nPlatform~Client~IP: 6.6.6.6\r\nX.Forwarded.For: 6.6.6.6\r\n"), plain},
		{"headers of one connection", get("Connection: close, platform-client-ip, x-forwarded-for, via\r\nKeep-Alive: 5\r\nProxy-Authorization: x\r\nProxy: x\r\nTE: gzip\r\n"), plain},
		{"upgrade to h2c", get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), plain},
		{"upgrade without the option", get("Upgrade: websocket\r\n"), plain},
		{"edge header as a trailer", post("Transfer-Encoding: chunked\r\nTrailer: X-Sum, Platform-Client-IP, fly-replay-src\r\n", "1\r\nx\r\n0\r\nX-Sum: 1\r\nPlatform-Client-IP: 6.6.6.6\r\nfly-replay-src: x\r\nFly_Client_IP: 6.6.6.6\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"), `POST / HTTP/1.1 app.apps.test "x"`},
		{"framing as a trailer", chunked("1\r\nx\r\n0\r\nContent-Length: 50\r\n\r\n" + smuggled), ""},
		{"framing announced as a trailer", post("Transfer-Encoding: chunked\r\nTrailer: Transfer-Encoding\r\n", "0\r\n\r\n"), ""},
		{"body that ends too soon", post("Content-Length: 50\r\n", "x"), ""},
	}
}

// hostile2 is one over HTTP/2.
type hostile2 struct {
	name     string
	fields   []string
	body     string // empty: the header ends the request
	trailers []string
	want     string
}

func hostileHTTP2() []hostile2 {
	fields := func(more ...string) []string {
		return append([]string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "app.apps.test"}, more...)
	}
	pseudo := func(method, path, authority string, more ...string) []string {
		return append([]string{":method", method, ":scheme", "http", ":path", path, ":authority", authority}, more...)
	}
	const posted, empty = `POST / HTTP/1.1 app.apps.test "hello"`, `POST / HTTP/1.1 app.apps.test ""`
	return []hostile2{
		{"plain", fields(), "hello", nil, posted},
		{"length", fields("content-length", "5"), "hello", nil, posted},
		{"length too small", fields("content-length", "1"), "hello", nil, ""},
		{"length too large", fields("content-length", "50"), "hello", nil, ""},
		{"length of no body", fields("content-length", "5"), "", nil, ""},
		{"length that is none", fields("content-length", "abc"), "hello", nil, ""},
		{"signed length", fields("content-length", "+5"), "hello", nil, ""},
		{"two lengths", fields("content-length", "5", "content-length", "50"), "hello", nil, ""},
		{"coding", fields("transfer-encoding", "chunked"), "0\r\n\r\n" + smuggled, nil, ""},
		{"connection", fields("connection", "transfer-encoding"), "hello", nil, ""},
		{"upgrade", fields("upgrade", "websocket"), "hello", nil, ""},
		{"te", fields("te", "gzip"), "hello", nil, ""},
		{"value with a line", fields("x", "a\r\n\r\n"+smuggled), "", nil, ""},
		{"name with a line", fields("x: a\r\ny", "a"), "", nil, ""},
		{"name with a colon", fields("x:y", "a"), "", nil, ""},
		{"name in upper case", fields("X", "a"), "", nil, ""},
		{"method with a request", pseudo("GET /smuggled HTTP/1.1\r\nX:", "/", "app.apps.test"), "", nil, ""},
		{"method with a space", pseudo("GET /smuggled", "/", "app.apps.test"), "", nil, ""},
		{"path with a line", pseudo("GET", "/ HTTP/1.1\r\nX: y", "app.apps.test"), "", nil, ""},
		{"path with a space", pseudo("GET", "/ HTTP/1.1", "app.apps.test"), "", nil, `GET /%20HTTP/1.1 HTTP/1.1 app.apps.test ""`},
		{"query with a space", pseudo("GET", "/?x HTTP/1.1", "app.apps.test"), "", nil, ""},
		{"query with a fragment", pseudo("GET", "/?x#y", "app.apps.test"), "", nil, ""},
		{"path without a slash", pseudo("GET", "smuggled", "app.apps.test"), "", nil, ""},
		{"absolute path", pseudo("GET", "http://foreign.apps.test/", "app.apps.test"), "", nil, ""},
		{"star of GET", pseudo("GET", "*", "app.apps.test"), "", nil, ""},
		{"no path", pseudo("GET", "", "app.apps.test"), "", nil, ""},
		{"authority with a line", pseudo("GET", "/", "app.apps.test\r\nx: y"), "", nil, ""},
		{"authority with a user", pseudo("GET", "/", "x@app.apps.test"), "", nil, ""},
		{"authority with a path", pseudo("GET", "/", "app.apps.test/x"), "", nil, ""},
		{"host beside the authority", fields("host", "foreign.apps.test"), "", nil, ""},
		{"two hosts", fields("host", "app.apps.test", "host", "foreign.apps.test"), "", nil, ""},
		{"host alone", []string{":method", "POST", ":scheme", "http", ":path", "/", "host", "app.apps.test"}, "", nil, empty},
		{"no host", []string{":method", "POST", ":scheme", "http", ":path", "/"}, "", nil, ""},
		{"path twice", fields(":path", "/smuggled"), "", nil, ""},
		{"pseudo-header behind others", fields("x", "y", ":path", "/smuggled"), "", nil, ""},
		{"unknown pseudo-header", append([]string{":host", "x"}, fields()...), "", nil, ""},
		{"CONNECT", []string{":method", "CONNECT", ":authority", "app.apps.test:80"}, "hello", nil, ""},
		{"edge headers", fields("platform-client-ip", "6.6.6.6", "fly-client-ip", "6.6.6.6", "fly_client_ip", "6.6.6.6", "fly.client.ip", "6.6.6.6", "fly-replay-src", "x"), "", nil, empty},
		{"edge header as a trailer", fields("trailer", "x-sum, platform-client-ip"), "hello", []string{"x-sum", "1", "platform-client-ip", "6.6.6.6"}, posted},
		{"framing as a trailer", fields("trailer", "content-encoding"), "hello", []string{"content-encoding", "gzip"}, ""},
		{"pseudo-header as a trailer", fields("trailer", "x-sum"), "hello", []string{":path", "/smuggled"}, ""},
	}
}

// incomplete gets a quick answer for a request whose body does not arrive.
func incomplete(o *proxy.Options) { o.Limits.BodyTimeout = 2 * time.Second }

// TestHostile sends requests that have fooled other proxies. The Machine gets nothing, or what can
// be parsed in one way only.
func TestHostile(t *testing.T) {
	w := newWorld(t, incomplete)
	r := &recorder{}
	w.machine("a1", "app", w.scripted(r.serve), nil)
	for _, c := range hostileHTTP1() {
		t.Run("HTTP/1/"+c.name, func(t *testing.T) {
			r.reset()
			answer := w.raw(c.text)
			r.check(t, answer, c.want)
		})
	}
	for _, c := range hostileHTTP2() {
		t.Run("HTTP/2/"+c.name, func(t *testing.T) {
			r.reset()
			answer := w.raw2(c.fields, c.body, c.trailers)
			r.check(t, answer, c.want)
		})
	}
}

// check compares what was received with what is allowed. A refused client gets an answer that says
// so, or none.
func (r *recorder) check(t *testing.T, answer, want string) {
	t.Helper()
	got, wrong := r.reset()
	if len(wrong) > 0 {
		t.Errorf("the Machine got what is ambiguous: %q", wrong)
	}
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("the Machine got %q, want %q", text, want)
	}
	if ok := strings.Contains(answer, " 200 "); ok != (want != "") {
		t.Errorf("the client got %q", answer)
	}
}

// raw2 sends one request over HTTP/2, and returns its status between spaces, or what happened.
func (w *world) raw2(fields []string, body string, trailers []string) string {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	return say2(c, fields, body, trailers)
}

// say2 is raw2 over a connection, which it closes.
func say2(c net.Conn, fields []string, body string, trailers []string) string {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encode := func(list []string) []byte {
		block.Reset()
		for i := 0; i < len(list); i += 2 {
			_ = encoder.WriteField(hpack.HeaderField{Name: list[i], Value: list[i+1]})
		}
		return bytes.Clone(block.Bytes())
	}
	_ = fr.WriteSettings()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(fields), EndHeaders: true, EndStream: body == ""})
	if body != "" {
		_ = fr.WriteData(1, trailers == nil, []byte(body))
	}
	if trailers != nil {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(trailers), EndHeaders: true, EndStream: true})
	}
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return " " + f.PseudoValue("status") + " "
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return f.Header().Type.String()
		}
	}
}
