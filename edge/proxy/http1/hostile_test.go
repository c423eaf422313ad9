package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"sync"
	"testing"
)

// hostile is one sequence of bytes from a client. Each must be refused with a status, or be parsed
// in exactly one way.
type hostile struct {
	name, request string
	status        int    // of the refusal; 0: not refused
	seen          string // by the handler, requests separated by " | "; what a refusal comes after, if anything
}

const h11 = "Host: a.example\r\n"

// get is a request with some more header lines.
func get(lines string) string { return "GET / HTTP/1.1\r\n" + h11 + lines + "\r\n" }

// post is a request with framing and a body.
func post(lines, body string) string { return "POST / HTTP/1.1\r\n" + h11 + lines + "\r\n" + body }

const next = "GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n"

var hostiles = []hostile{
	// Lengths.
	{"length twice, same", post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), 400, ""},
	{"length twice, different", post("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), 400, ""},
	{"length twice, other case", post("Content-Length: 3\r\ncontent-length: 3\r\n", "abc"), 400, ""},
	{"length list, same", post("Content-Length: 3, 3\r\n", "abc"), 400, ""},
	{"length list, different", post("Content-Length: 3, 4\r\n", "abcd"), 400, ""},
	{"length with plus", post("Content-Length: +3\r\n", "abc"), 400, ""},
	{"length negative", post("Content-Length: -3\r\n", "abc"), 400, ""},
	{"length minus zero", post("Content-Length: -0\r\n", ""), 400, ""},
	{"length empty", post("Content-Length:\r\n", ""), 400, ""},
	{"length hexadecimal", post("Content-Length: 0x3\r\n", "abc"), 400, ""},
	{"length octal-looking is decimal", post("Content-Length: 010\r\n", "0123456789"), 0, `POST / a.example "0123456789"`},
	{"length with a letter", post("Content-Length: 3a\r\n", "abc"), 400, ""},
	{"length with a space inside", post("Content-Length: 1 1\r\n", "abc"), 400, ""},
	{"length with a fraction", post("Content-Length: 3.0\r\n", "abc"), 400, ""},
	{"length with an exponent", post("Content-Length: 1e1\r\n", "abc"), 400, ""},
	{"length with an underscore", post("Content-Length: 1_0\r\n", "abc"), 400, ""},
	{"length beyond 64 bits", post("Content-Length: 18446744073709551619\r\n", "abc"), 400, ""},
	{"length beyond 63 bits", post("Content-Length: 9223372036854775808\r\n", "abc"), 400, ""},
	{"length with Arabic digits", post("Content-Length: \u0663\r\n", "abc"), 400, ""},
	{"length in quotes", post("Content-Length: \"3\"\r\n", "abc"), 400, ""},
	{"length with a tab before it", post("Content-Length:\t3\r\n", "abc"), 0, `POST / a.example "abc"`},
	{"length with spaces around", post("Content-Length:  3  \r\n", "abc"), 0, `POST / a.example "abc"`},
	{"length of zero, then a request", post("Content-Length: 0\r\n", next), 0, `POST / a.example "" | GET /next a.example ""`},
	{"length and nothing more hides no request", post("Content-Length: 39\r\n", next), 0, `POST / a.example "GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n"`},
	{"length of GET is honoured", "GET / HTTP/1.1\r\n" + h11 + "Content-Length: 39\r\n\r\n" + next, 0, `GET / a.example "GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n"`},
	{"name with an underscore is no length", post("Content_Length: 41\r\n", next), 0, `POST / a.example "" | GET /next a.example ""`},

	// Lengths and codings.
	{"length and chunked", post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"chunked and length", post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"), 400, ""},
	{"length zero and chunked", post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding identity", post("Transfer-Encoding: identity\r\n", ""), 501, ""},
	{"coding gzip", post("Transfer-Encoding: gzip\r\n", ""), 501, ""},
	{"coding gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, ""},
	{"coding chunked, gzip", post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 501, ""},
	{"coding chunked, identity", post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), 501, ""},
	{"coding chunked twice in a list", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding chunked twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding identity and chunked", post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 501, ""},
	{"coding empty", post("Transfer-Encoding:\r\n", ""), 400, ""},
	{"coding with a parameter", post("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"), 501, ""},
	{"coding in quotes", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501, ""},
	{"coding with a vertical tab", post("Transfer-Encoding: \vchunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding with a NUL", post("Transfer-Encoding: chunked\x00\r\n", "0\r\n\r\n"), 400, ""},
	{"coding with a control character in front", post("Transfer-Encoding: \x01chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding with a comma", post("Transfer-Encoding: ,chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding xchunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501, ""},
	{"coding cow", post("Transfer-Encoding: cow\r\n", "0\r\n\r\n"), 501, ""},
	{"coding in capitals", post("TRANSFER-ENCODING: CHUNKED\r\n", "3\r\nabc\r\n0\r\n\r\n"), 0, `POST / a.example "abc"`},
	{"coding after a tab", post("Transfer-Encoding:\tchunked\r\n", "3\r\nabc\r\n0\r\n\r\n"), 0, `POST / a.example "abc"`},
	{"coding with a no-break space", post("Transfer-Encoding: \u00a0chunked\r\n", "0\r\n\r\n"), 501, ""},
	{"coding with a space before the colon", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding with a tab before the colon", post("Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding on a folded line", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding behind a bare line feed", post("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding behind a bare carriage return", post("X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, ""},
	{"coding in HTTP/1.0", "POST / HTTP/1.0\r\n" + h11 + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, ""},
	{"name with an underscore is no coding", post("Transfer_Encoding: chunked\r\nContent-Length: 3\r\n", "abc"), 0, `POST / a.example "abc"`},

	// Chunks.
	{"chunk size with 0x", post("Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with plus", post("Transfer-Encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size negative", post("Transfer-Encoding: chunked\r\n", "-3\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size empty", post("Transfer-Encoding: chunked\r\n", "\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size of 16 digits", post("Transfer-Encoding: chunked\r\n", "0000000000000003\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size that overflows", post("Transfer-Encoding: chunked\r\n", "10000000000000003\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with a space after", post("Transfer-Encoding: chunked\r\n", "3 \r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with a space before", post("Transfer-Encoding: chunked\r\n", " 3\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with junk", post("Transfer-Encoding: chunked\r\n", "3zz\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with a comma", post("Transfer-Encoding: chunked\r\n", "3,3\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size ends with a bare line feed", post("Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size with a carriage return twice", post("Transfer-Encoding: chunked\r\n", "3\r\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk without the line end after it", post("Transfer-Encoding: chunked\r\n", "3\r\nabc0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk longer than its size", post("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk ends with a bare line feed", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"last chunk ends with a bare line feed", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\n\r\n"), 400, "POST / a.example !"},
	{"body ends with a bare line feed", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\n"), 400, "POST / a.example !"},
	{"chunk extension is dropped", post("Transfer-Encoding: chunked\r\n", "3;a=b;c=\"d\"\r\nabc\r\n0;x\r\n\r\n"), 0, `POST / a.example "abc"`},
	{"chunk extension with a bare line feed", post("Transfer-Encoding: chunked\r\n", "3;a\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk extension with a bare carriage return", post("Transfer-Encoding: chunked\r\n", "3;a\rb\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk extension with a NUL", post("Transfer-Encoding: chunked\r\n", "3;a\x00\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk extension that is too long", post("Transfer-Encoding: chunked\r\n", "3;"+strings.Repeat("a", 1000)+"\r\nabc\r\n0\r\n\r\n"), 400, "POST / a.example !"},
	{"chunk size in capitals with zeros", post("Transfer-Encoding: chunked\r\n", "00A\r\n0123456789\r\n000\r\n\r\n"), 0, `POST / a.example "0123456789"`},
	{"body cut in a chunk", post("Transfer-Encoding: chunked\r\n", "5\r\nabc"), 400, "POST / a.example !"},
	{"body cut before the last chunk", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n"), 400, "POST / a.example !"},
	{"body cut before its last line", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n"), 400, "POST / a.example !"},
	{"chunks, then a request", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"+next), 0, `POST / a.example "abc" | GET /next a.example ""`},
	{"body with a length, cut", post("Content-Length: 5\r\n", "abc"), 400, "POST / a.example !"},

	// Trailers.
	{"trailer field", post("Transfer-Encoding: chunked\r\n", "0\r\nX-Sum: 1\r\n\r\n"), 0, `POST / a.example "" X-Sum=1`},
	{"trailer with a length", post("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 5\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer with a coding", post("Transfer-Encoding: chunked\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer with a host", post("Transfer-Encoding: chunked\r\n", "0\r\nHost: b.example\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer with authorization", post("Transfer-Encoding: chunked\r\n", "0\r\nAuthorization: x\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer with a bare line feed", post("Transfer-Encoding: chunked\r\n", "0\r\nX-Sum: 1\n\r\n"), 400, "POST / a.example !"},
	{"trailer folded", post("Transfer-Encoding: chunked\r\n", "0\r\nX-Sum: 1\r\n 2\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer without a colon", post("Transfer-Encoding: chunked\r\n", "0\r\nX-Sum\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer that is a request", post("Transfer-Encoding: chunked\r\n", "0\r\nGET /next HTTP/1.1\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer that is too large", post("Transfer-Encoding: chunked\r\n", "0\r\nX: "+strings.Repeat("a", 9000)+"\r\n\r\n"), 400, "POST / a.example !"},
	{"trailer announces a length", post("Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n", "0\r\n\r\n"), 400, ""},
	{"trailer announces junk", post("Transfer-Encoding: chunked\r\nTrailer: a b\r\n", "0\r\n\r\n"), 400, ""},

	// Lines.
	{"all lines end with a bare line feed", "GET / HTTP/1.1\nHost: a.example\n\n", 400, ""},
	{"request line ends with a bare line feed", "GET / HTTP/1.1\nHost: a.example\r\n\r\n", 400, ""},
	{"header line ends with a bare line feed", get("X: y\n"), 400, ""},
	{"last line ends with a bare line feed", "GET / HTTP/1.1\r\nHost: a.example\r\n\n", 400, ""},
	{"bare carriage return in a value", get("X: a\rb\r\n"), 400, ""},
	{"bare carriage return in a name", get("X\r: a\r\n"), 400, ""},
	{"bare carriage return ends the request line", "GET / HTTP/1.1\rHost: a.example\r\n\r\n", 400, ""},
	{"two carriage returns", get("X: a\r\r\n"), 400, ""},
	{"folded with a space", get("X: a\r\n b\r\n"), 400, ""},
	{"folded with a tab", get("X: a\r\n\tb\r\n"), 400, ""},
	{"folded with nothing", get("X: a\r\n \r\n"), 400, ""},
	{"first header line folded", "GET / HTTP/1.1\r\n Host: a.example\r\n\r\n", 400, ""},
	{"folded with a colon", get("X: a\r\n Y: b\r\n"), 400, ""},
	{"NUL in a value", get("X: a\x00b\r\n"), 400, ""},
	{"NUL in a name", get("X\x00: a\r\n"), 400, ""},
	{"NUL in the target", "GET /\x00 HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"NUL first", "\x00GET / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"DEL in a value", get("X: a\x7fb\r\n"), 400, ""},
	{"escape in a value", get("X: a\x1bb\r\n"), 400, ""},
	{"backspace in a value", get("X: a\bb\r\n"), 400, ""},
	{"space before the colon", get("X : a\r\n"), 400, ""},
	{"space in a name", get("X Y: a\r\n"), 400, ""},
	{"empty name", get(": a\r\n"), 400, ""},
	{"no colon", get("X\r\n"), 400, ""},
	{"name with a slash", get("X/Y: a\r\n"), 400, ""},
	{"name in brackets", get("[X]: a\r\n"), 400, ""},
	{"name that is not ASCII", get("X\xc3\xa9: a\r\n"), 400, ""},
	{"name in quotes", get("\"X\": a\r\n"), 400, ""},
	{"value that is not ASCII", get("X: \xc3\xa9\r\n"), 0, `GET / a.example "" X=é`},
	{"value with colons", get("X: a:b: c\r\n"), 0, `GET / a.example "" X=a:b: c`},
	{"empty value", get("X:\r\n"), 0, `GET / a.example "" X=`},
	{"the same name in two spellings", get("x-a: 1\r\nX-A: 2\r\n"), 0, `GET / a.example "" X-A=1,2`},
	{"one empty line first", "\r\n" + get(""), 0, `GET / a.example ""`},
	{"two empty lines first", "\r\n\r\n" + get(""), 400, ""},
	{"a bare line feed first", "\n" + get(""), 400, ""},
	{"a space first", " " + get(""), 400, ""},
	{"too many fields", get(strings.Repeat("X: y\r\n", 300)), 431, ""},
	{"header that is too large", get("X: " + strings.Repeat("a", 9000) + "\r\n"), 431, ""},
	{"name that is too long", get(strings.Repeat("a", 9000) + ": x\r\n"), 431, ""},
	{"header that never ends", "GET / HTTP/1.1\r\n" + strings.Repeat("X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", 200), 431, ""},

	// Request lines.
	{"target that is too long", "GET /" + strings.Repeat("a", 9000) + " HTTP/1.1\r\n" + h11 + "\r\n", 414, ""},
	{"first line that never ends", strings.Repeat("a", 20000), 414, ""},
	{"HTTP/0.9", "GET /\r\n", 400, ""},
	{"HTTP/0.9 with fields", "GET /\r\n" + h11 + "\r\n", 400, ""},
	{"version 0.9", "GET / HTTP/0.9\r\n" + h11 + "\r\n", 505, ""},
	{"version 1.2", "GET / HTTP/1.2\r\n" + h11 + "\r\n", 505, ""},
	{"version 2.0", "GET / HTTP/2.0\r\n" + h11 + "\r\n", 505, ""},
	{"preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, ""},
	{"version without a minor", "GET / HTTP/1\r\n" + h11 + "\r\n", 400, ""},
	{"version with two digits", "GET / HTTP/1.10\r\n" + h11 + "\r\n", 400, ""},
	{"version in lower case", "GET / http/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"version with a space after", "GET / HTTP/1.1 \r\n" + h11 + "\r\n", 400, ""},
	{"two versions", "GET / HTTP/1.1 HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"version of another protocol", "GET / RTSP/1.0\r\n" + h11 + "\r\n", 400, ""},
	{"two spaces before the target", "GET  / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"two spaces after the target", "GET /  HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"tabs between the parts", "GET\t/\tHTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"space in the target", "GET /a b HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"no target", "GET HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"no method", " / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"method with a colon", "GE:T / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"method in quotes", "\"GET\" / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"method that is too long", strings.Repeat("A", 65) + " / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"method in lower case is another one", "get / HTTP/1.1\r\n" + h11 + "\r\n", 0, `get / a.example ""`},
	{"TLS on a plain port", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, ""},
	{"TRACE with a body", "TRACE / HTTP/1.1\r\n" + h11 + "Content-Length: 3\r\n\r\nabc", 400, ""},

	// Targets.
	{"relative target", "GET a HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"target that is a query", "GET ?a HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"target with a fragment", "GET /a#b HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"target with a bad escape", "GET /%zz HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"target with half an escape", "GET /% HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"target with an escaped NUL keeps it", "GET /%00 HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /%00 a.example ""`},
	{"target with an escaped slash keeps it", "GET /a%2Fb HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /a%2Fb a.example ""`},
	{"target with an escaped line end keeps it", "GET /a%0d%0aX:%20y HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /a%0d%0aX:%20y a.example ""`},
	{"target with two slashes is a path", "GET //b.example/a HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET //b.example/a a.example ""`},
	{"target with dots is not changed", "GET /a/../b HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /a/../b a.example ""`},
	{"target with a backslash is escaped", "GET /a\\b HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /a%5Cb a.example ""`},
	{"target that is not ASCII is escaped", "GET /\xc3\xa9?\xc3\xa9 HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /%C3%A9?%C3%A9 a.example ""`},
	{"empty query is kept", "GET /? HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /? a.example ""`},
	{"absolute target", "GET http://b.example/p?q HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /p?q b.example ""`},
	{"absolute target without a path", "GET http://b.example HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET / b.example ""`},
	{"absolute target with a query alone", "GET http://b.example?q HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET /?q b.example ""`},
	{"absolute target in capitals", "GET HTTP://b.example/ HTTP/1.1\r\n" + h11 + "\r\n", 0, `GET / b.example ""`},
	{"absolute target with a user", "GET http://u:p@b.example/ HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"absolute target without a host", "GET http:///p HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"absolute target of another scheme", "GET ftp://b.example/ HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"absolute target of a file", "GET file:///etc/passwd HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"absolute target without Host", "GET http://b.example/ HTTP/1.1\r\n\r\n", 400, ""},
	{"absolute target with a bad port", "GET http://b.example:99999/ HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"absolute target with a backslash", "GET http://b.example\\@a.example/ HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"OPTIONS *", "OPTIONS * HTTP/1.1\r\n" + h11 + "\r\n", 0, `OPTIONS * a.example ""`},
	{"OPTIONS of a host", "OPTIONS http://b.example HTTP/1.1\r\n" + h11 + "\r\n", 0, `OPTIONS * b.example ""`},
	{"GET *", "GET * HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"CONNECT", "CONNECT b.example:443 HTTP/1.1\r\n" + h11 + "\r\n", 0, `CONNECT b.example:443 b.example:443 ""`},
	{"CONNECT to a path", "CONNECT / HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"CONNECT without a port", "CONNECT b.example HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"CONNECT to a URL", "CONNECT http://b.example/ HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},
	{"CONNECT with a body", "CONNECT b.example:443 HTTP/1.1\r\n" + h11 + "Content-Length: 3\r\n\r\nabc", 400, ""},
	{"GET of an authority", "GET b.example:443 HTTP/1.1\r\n" + h11 + "\r\n", 400, ""},

	// Host.
	{"no Host", "GET / HTTP/1.1\r\n\r\n", 400, ""},
	{"no Host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", 0, `GET /  ""`},
	{"two Hosts", get("Host: b.example\r\n"), 400, ""},
	{"two equal Hosts", get(h11), 400, ""},
	{"two Hosts in HTTP/1.0", "GET / HTTP/1.0\r\n" + h11 + h11 + "\r\n", 400, ""},
	{"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, ""},
	{"Host with a path", "GET / HTTP/1.1\r\nHost: a.example/b\r\n\r\n", 400, ""},
	{"Host with a user", "GET / HTTP/1.1\r\nHost: u@a.example\r\n\r\n", 400, ""},
	{"Host with a space", "GET / HTTP/1.1\r\nHost: a.example b.example\r\n\r\n", 400, ""},
	{"Host list", "GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n", 400, ""},
	{"Host with a bad port", "GET / HTTP/1.1\r\nHost: a.example:http\r\n\r\n", 400, ""},
	{"Host with a port that is too large", "GET / HTTP/1.1\r\nHost: a.example:65536\r\n\r\n", 400, ""},
	{"Host with two ports", "GET / HTTP/1.1\r\nHost: a.example:80:81\r\n\r\n", 400, ""},
	{"Host with an escape", "GET / HTTP/1.1\r\nHost: a%2eexample\r\n\r\n", 400, ""},
	{"Host with an open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, ""},
	{"Host with a zone", "GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n", 400, ""},
	{"Host that is a bare IPv6 address", "GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", 400, ""},
	{"Host that is not ASCII", "GET / HTTP/1.1\r\nHost: \xc3\xa9.example\r\n\r\n", 400, ""},
	{"Host with a query", "GET / HTTP/1.1\r\nHost: a.example?x\r\n\r\n", 400, ""},
	{"Host that is an IPv6 address", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 0, `GET / [::1]:8080 ""`},
	{"Host that is an IPv4 address", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 0, `GET / 127.0.0.1 ""`},

	// Expectations and pipelines.
	{"another expectation", post("Expect: 200-ok\r\nContent-Length: 3\r\n", "abc"), 417, ""},
	{"two expectations", post("Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 3\r\n", "abc"), 417, ""},
	{"an expectation list", post("Expect: 100-continue, x\r\nContent-Length: 3\r\n", "abc"), 417, ""},
	{"the expectation of HTTP/1.0 is ignored", "POST / HTTP/1.0\r\n" + h11 + "Expect: x\r\nContent-Length: 3\r\n\r\nabc", 0, `POST / a.example "abc"`},
	{"a good request, then a bad one", get("") + get("X : y\r\n"), 400, `GET / a.example ""`},
	{"a bad request, then a good one", get("X : y\r\n") + next, 400, ""},
	{"a close, then a request", get("Connection: close\r\n") + next, 0, `GET / a.example ""`},
	{"a close in a list, then a request", get("Connection: x, Close\r\n") + next, 0, `GET / a.example ""`},
	{"HTTP/1.0, then a request", "GET / HTTP/1.0\r\n\r\n" + next, 0, `GET /  ""`},
	{"a body that is too large", post("Content-Length: 100000000\r\n", "abc"), 413, ""},
	{"chunks that are too large", post("Transfer-Encoding: chunked\r\n", "5f5e100\r\nabc"), 400, "POST / a.example !"},
}

// recorder is a handler that records what it sees.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	line := fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, r.Host)
	if err != nil {
		line += " !"
		w.WriteHeader(http.StatusBadRequest)
	} else {
		line += fmt.Sprintf(" %q", body)
	}
	for _, h := range []http.Header{r.Header, r.Trailer} {
		var names []string
		for name := range h {
			if strings.HasPrefix(name, "X") {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		for _, name := range names {
			line += " " + name + "=" + strings.Join(h[name], ",")
		}
	}
	if r.Method != http.MethodConnect && r.RequestURI != r.URL.RequestURI() {
		line += " but the URL is " + r.URL.RequestURI()
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.seen = append(rec.seen, line)
}

func TestHostileRequests(t *testing.T) {
	if len(hostiles) < 100 {
		t.Fatalf("%d requests, want 100", len(hostiles))
	}
	for _, h := range hostiles {
		t.Run(h.name, func(t *testing.T) {
			rec := &recorder{}
			s := quick(rec.ServeHTTP)
			s.MaxHeaderBytes, s.MaxBody = 8<<10, 1<<20
			answers, _, rest := ask(t, listen(t, s), h.request)
			if !errors.Is(rest, io.EOF) {
				t.Errorf("the connection ended with %v", rest)
			}
			if seen := strings.Join(rec.seen, " | "); seen != h.seen {
				t.Errorf("the handler saw\n\t%s\nwant\n\t%s", seen, h.seen)
			}
			want := strings.Count(h.seen, " | ")
			if h.seen != "" {
				want++
			}
			if h.status != 0 && !strings.HasSuffix(h.seen, "!") {
				want++
			}
			if len(answers) != want {
				t.Fatalf("%d answers, want %d", len(answers), want)
			}
			last := answers[len(answers)-1]
			if h.status == 0 && last.StatusCode != http.StatusOK || h.status != 0 && last.StatusCode != h.status {
				t.Errorf("status %d, want %d", last.StatusCode, h.status)
			}
			if h.status != 0 && !strings.HasSuffix(h.seen, "!") && !last.Close {
				t.Error("the answer does not say that the connection is closed")
			}
		})
	}
	t.Logf("%d hostile requests", len(hostiles))
}

// hostileAnswers are what a Machine sends. An empty want means that there is an error.
var hostileAnswers = []struct{ name, answer, want string }{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "200 abc"},
	{"no reason", "HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc", "200 abc"},
	{"until the end", "HTTP/1.1 200 OK\r\n\r\nabc", "200 abc"},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n", "200 abc"},
	{"early hints", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "200 abc"},
	{"nothing", "", ""},
	{"status line cut", "HTTP/1.1 200", ""},
	{"header cut", "HTTP/1.1 200 OK\r\nContent-Le", ""},
	{"body cut", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", ""},
	{"chunks cut", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ""},
	{"HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"HTTP/0.9", "hello", ""},
	{"version 1.2", "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"status negative", "HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"status below 100", "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"status line with a NUL", "HTTP/1.1 200 O\x00K\r\nContent-Length: 0\r\n\r\n", ""},
	{"status line with a bare carriage return", "HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n", ""},
	{"two spaces", "HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n", ""},
	{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", ""},
	{"one bare line feed", "HTTP/1.1 200 OK\r\nX: y\nContent-Length: 0\r\n\r\n", ""},
	{"length twice", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", ""},
	{"lengths differ", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", ""},
	{"length list", "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", ""},
	{"length negative", "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", ""},
	{"length and chunked", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""},
	{"coding gzip", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", ""},
	{"coding twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""},
	{"coding in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""},
	{"folded line", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n", ""},
	{"space before the colon", "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n", ""},
	{"NUL in a value", "HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 0\r\n\r\n", ""},
	{"no colon", "HTTP/1.1 200 OK\r\nX\r\nContent-Length: 0\r\n\r\n", ""},
	{"empty name", "HTTP/1.1 200 OK\r\n: y\r\nContent-Length: 0\r\n\r\n", ""},
	{"too many fields", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 300) + "Content-Length: 0\r\n\r\n", ""},
	{"header that is too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 300<<10) + "\r\n\r\n", ""},
	{"status line that never ends", "HTTP/1.1 200 " + strings.Repeat("a", 20<<10), ""},
	{"interim answers without an end", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100), ""},
	{"unsolicited upgrade", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", ""},
	{"chunk size junk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3x\r\nabc\r\n0\r\n\r\n", ""},
	{"chunk size overflows", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n", ""},
	{"chunk without a line end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n", ""},
	{"trailer with a length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n", ""},
}

func TestHostileAnswers(t *testing.T) {
	for _, h := range hostileAnswers {
		t.Run(h.name, func(t *testing.T) {
			c := NewConn(dial(t, answering(t, h.answer)))
			defer c.Close()
			got, err := once(t, c, http.MethodGet)
			switch {
			case h.want == "" && err == nil:
				t.Errorf("understood as %q", got)
			case h.want != "" && (err != nil || got != h.want):
				t.Errorf("got %q and %v, want %q", got, err, h.want)
			case err != nil && c.Reusable():
				t.Error("the connection can be used again")
			}
		})
	}
}

// TestWhatFollowsAnAnswerIsNotOfTheNext: after unexpected bytes behind an answer, the connection is
// not reused.
func TestWhatFollowsAnAnswerIsNotOfTheNext(t *testing.T) {
	for name, answer := range map[string]string{
		"more than the length": "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n",
		"after no content":     "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
		"close":                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
		"HTTP/1.0":             "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
	} {
		t.Run(name, func(t *testing.T) {
			c := NewConn(dial(t, answering(t, answer)))
			defer c.Close()
			if _, err := once(t, c, http.MethodGet); err != nil {
				t.Fatal(err)
			}
			if c.Reusable() {
				t.Error("the connection can be used again")
			}
			_, err := once(t, c, http.MethodGet)
			var rt *RoundTripError
			if !errors.As(err, &rt) || rt.Wrote || rt.Read {
				t.Errorf("the second request: %v", err)
			}
		})
	}
}
