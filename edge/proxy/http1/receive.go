package http1

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
)

// received is an answer and its body, allocated together.
type received struct {
	resp http.Response
	body answerBody
}

// readAnswer reads the head of the final answer.
func (c *Conn) readAnswer(r *http.Request, informational func(int, http.Header)) (*http.Response, error) {
	for range maxInformational {
		s, lines, err := c.readHead()
		if err != nil {
			return nil, err
		}
		var f framing
		a := &received{}
		if err := parseAnswer(s, lines, &a.resp, &f); err != nil {
			return nil, err
		}
		a.resp.Request = r
		switch code := a.resp.StatusCode; {
		case code >= 200:
			return c.final(a, &f)
		case code == http.StatusSwitchingProtocols:
			return c.switched(a, &f)
		case code == http.StatusContinue:
			if c.upload != nil {
				c.upload.goOn()
			}
		case informational != nil:
			informational(code, a.resp.Header)
		}
	}
	return nil, errors.New("http1: too many answers before the final one")
}

// readHead reads a head, including its line ends.
func (c *Conn) readHead() (string, int, error) {
	for {
		length, lines, err := c.in.head(c.maxAnswerBytes())
		switch {
		case err == nil:
			s := string(c.in.held()[:length])
			c.in.take(length)
			return s, lines, nil
		case errors.Is(err, errHeadIncomplete):
		default:
			return "", 0, err
		}
		if err := c.in.fill(c, c.maxAnswerBytes()); err != nil {
			if errors.Is(err, io.EOF) && (c.read || c.in.size() > 0) {
				err = io.ErrUnexpectedEOF
			}
			return "", 0, err
		}
	}
}

// parseAnswer parses the head of an answer.
func parseAnswer(s string, lines int, resp *http.Response, f *framing) (err error) {
	end := strings.IndexByte(s, '\n')
	line := s[:end-1]
	if len(line) < 12 || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' ||
		len(line) > 12 && line[12] != ' ' || !all(line, inValue) {
		return malformed("the status line of the answer is not one of HTTP/1")
	}
	code := 0
	for _, d := range []byte(line[9:12]) {
		if d < '0' || d > '9' {
			return malformed("the status of the answer is not a number of three digits")
		}
		code = code*10 + int(d-'0')
	}
	if code < 100 {
		return malformed("the status of the answer is less than 100")
	}
	resp.StatusCode, resp.Status = code, line[9:]
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = line[:8], 1, int(line[7]-'0')
	if resp.Header, err = parseFields(s[end+1:len(s)-2], lines-1, f); err != nil {
		return err
	}
	switch {
	case f.coding > 0 && f.lengths > 0:
		return malformed("the answer has both Content-Length and Transfer-Encoding")
	case f.coding > 0 && resp.ProtoMinor == 0:
		return malformed("the answer is HTTP/1.0 and has a Transfer-Encoding")
	}
	delete(resp.Header, "Transfer-Encoding")
	if f.trailers && f.coding > 0 {
		if resp.Trailer, err = declared(resp.Header); err != nil {
			return err
		}
	}
	return nil
}

// final makes the answer that RoundTrip returns.
func (c *Conn) final(a *received, f *framing) (*http.Response, error) {
	resp, b := &a.resp, &a.body
	c.headBy = noTime
	if c.upload != nil {
		if c.upload.proceed != nil && resp.StatusCode >= 300 {
			c.upload.stopped.Store(true)
		}
		c.upload.goOn()
	}
	resp.Close = f.close || resp.ProtoMinor == 0 && !f.keepAlive
	if resp.Close {
		c.spent = true
	}
	b.c, b.resp = c, resp
	b.r = bodyReader{from: c, in: &c.in, maxHead: c.maxAnswerBytes()}
	resp.Body = b
	connect := resp.Request.Method == http.MethodConnect && resp.StatusCode < 300
	switch {
	case resp.Request.Method == http.MethodHead || !bodyAllowed(resp.StatusCode):
		if resp.ContentLength = -1; f.lengths > 0 {
			resp.ContentLength = f.length
		}
		if resp.StatusCode == http.StatusNoContent {
			resp.ContentLength = 0
			c.spent = c.spent || f.coding > 0 || f.length > 0 // the following bytes may be meant as a body
		}
		b.finish()
		resp.Body = http.NoBody
	case connect:
		return nil, malformed("CONNECT was accepted, which the engine does not support")
	case f.coding > 0:
		resp.ContentLength, resp.TransferEncoding = -1, chunkedCoding
		b.r.ending = byChunks
	case f.lengths > 0:
		if resp.ContentLength = f.length; f.length == 0 {
			b.finish()
			resp.Body = http.NoBody
			break
		}
		b.r.ending, b.r.left = byLength, f.length
	default:
		resp.ContentLength, b.r.ending = -1, byClose
		c.spent = true
	}
	return resp, nil
}

// switched makes the answer of an upgrade.
func (c *Conn) switched(a *received, f *framing) (*http.Response, error) {
	if a.resp.Request.Header.Get("Upgrade") == "" || !f.upgrade {
		return nil, malformed("the answer switches to a protocol that was not requested")
	}
	if f.lengths > 0 && f.length > 0 || f.coding > 0 {
		return nil, malformed("the answer switches protocols and has a body")
	}
	c.headBy = noTime
	if c.endRequest(); c.spent { // the rest of the body would be taken for the other protocol
		return nil, malformed("the answer switches protocols before the request has ended")
	}
	c.busy, c.spent, c.lazy = true, true, false
	c.readBy = noTime
	if err := c.conn.SetDeadline(noTime); err != nil {
		return nil, err
	}
	a.resp.ContentLength = -1
	a.resp.Body = &upgraded{c: c}
	return &a.resp, nil
}

// answerBody is the body of an answer.
type answerBody struct {
	c    *Conn
	resp *http.Response
	r    bodyReader
	err  error // how it ended
}

// Read reads available bytes.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.finish()
	case err != nil:
		err = b.broken(err)
	}
	return n, err
}

// finish releases the connection.
func (b *answerBody) finish() {
	if b.err != nil {
		return
	}
	b.err = io.EOF
	if len(b.r.trailer) > 0 {
		if b.resp.Trailer == nil {
			b.resp.Trailer = b.r.trailer
		} else {
			maps.Copy(b.resp.Trailer, b.r.trailer)
		}
	}
	c := b.c
	c.spent = c.spent || c.in.size() > 0 // bytes without a request
	c.in.release()
	c.endRequest()
	if c.spent {
		_ = c.Close()
	}
}

// broken ends an incomplete answer.
func (b *answerBody) broken(err error) error {
	if b.err != nil {
		return b.err
	}
	c := b.c
	b.err = c.cause(err)
	c.spent = true
	_ = c.Close()
	c.in.release()
	c.endRequest()
	return b.err
}

// Close releases the connection if the rest of the body is at hand, and closes it otherwise.
func (b *answerBody) Close() error {
	switch {
	case b.over():
	case b.r.ending == byLength && b.r.left <= int64(b.c.in.size()):
		b.took(b.r.left)
	default:
		_ = b.broken(http.ErrBodyReadAfterClose) // the body ends with this error
	}
	return nil
}

// AtHand implements AtHand.
func (b *answerBody) AtHand() int {
	if b.err != nil {
		return 0
	}
	return b.r.atHand()
}

// Ready reports whether Read is known to return bytes at once. Between two chunks it is not.
func (b *answerBody) Ready() bool {
	if b.over() || b.r.ending == byChunks && b.r.at != chunkData {
		return false
	}
	if b.c.in.size() > 0 {
		return true
	}
	_, bytes, _ := b.c.look()
	return bytes
}

// over reports whether the body has ended.
func (b *answerBody) over() bool { return b.err != nil }

// direct returns the connection from which the rest of a body can be read directly, if left bytes
// remain and the connection is TCP.
func (b *answerBody) direct(left int64) (*net.TCPConn, bool) {
	ok := b.err == nil && b.r.ending == byLength && b.r.left == left && b.c.tcp != nil && int64(b.c.in.size()) < left
	return b.c.tcp, ok
}

// took records that bytes of the body were read around Read.
func (b *answerBody) took(n int64) {
	b.c.in.take(int(min(n, int64(b.c.in.size()))))
	if b.r.left -= n; b.r.left == 0 {
		b.r.done = true
		b.finish()
	}
}

// cut is the error of a truncated body.
func (b *answerBody) cut() error { return io.ErrUnexpectedEOF }
