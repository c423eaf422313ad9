// Package page writes the edge's own answers: what a client gets when no Machine answered.
//
// A browser gets a plain page that loads nothing from elsewhere, a program that accepts JSON an
// object, and any other client a line of text. Every answer names the error's code, in a header
// under both spellings and in the body, and the request's id; it is never to be cached.
// Everything that came from outside is escaped.
//
// The package decides nothing: status, code and message are the error's.
package page

import (
	"encoding/json"
	"html"
	"net/http"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/qvalue"
)

// Problem is the JSON form.
type Problem struct {
	Error     string          `json:"error"`
	Code      hangar.EdgeCode `json:"code"`
	Status    int             `json:"status"`
	RequestID string          `json:"request_id,omitempty"`
}

// Write answers a request with an error. Headers that describe another body are removed; all
// others of w are kept.
func Write(w http.ResponseWriter, r *http.Request, e *hangar.EdgeError, requestID string) {
	status := e.Status
	if status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	kind, body := render(r, e, status, requestID)
	h := w.Header()
	for _, name := range [...]string{
		"Accept-Ranges", "Content-Encoding", "Content-Range", "Content-Language", "Content-Disposition", "Etag", "Expires",
		"Last-Modified", "Trailer", "Transfer-Encoding",
	} {
		h.Del(name)
	}
	h.Set(hangar.HeaderErrorCode.Neutral, string(e.Code))
	h.Set(hangar.HeaderErrorCode.Original, string(e.Code))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept")
	if kind == typeHTML {
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	}
	w.WriteHeader(status)
	if r == nil || r.Method != http.MethodHead {
		_, _ = w.Write(body) //nolint:gosec // it is escaped for its type; a client that does not read the error does not need it
	}
}

const (
	typeHTML = "text/html; charset=utf-8"
	typeJSON = "application/json"
	typeText = "text/plain; charset=utf-8"
)

// render makes the body in the form that a request accepts.
func render(r *http.Request, e *hangar.EdgeError, status int, requestID string) (kind string, body []byte) {
	switch kind = preferred(r); kind {
	case typeJSON:
		b, err := json.Marshal(Problem{e.Message, e.Code, status, requestID})
		if err == nil {
			return kind, append(b, '\n')
		}
	case typeHTML:
		return kind, document(e, status, requestID)
	}
	line := "[" + string(e.Code) + "] " + e.Message
	if requestID != "" {
		line += " (request " + requestID + ")"
	}
	return typeText, []byte(line + "\n")
}

// document is the page. It says what happened, and what to look for in a log.
func document(e *hangar.EdgeError, status int, requestID string) []byte {
	title := strconv.Itoa(status)
	if text := http.StatusText(status); text != "" {
		title += " " + text
	}
	title = html.EscapeString(title)
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"robots\" content=\"noindex\">\n<title>")
	b.WriteString(title)
	b.WriteString("</title>\n<style>\n" + style + "</style>\n</head>\n<body>\n<main>\n<h1>")
	b.WriteString(title)
	b.WriteString("</h1>\n<p>")
	b.WriteString(html.EscapeString(e.Message))
	b.WriteString("</p>\n<dl>\n<dt>Code</dt><dd><code>")
	b.WriteString(html.EscapeString(string(e.Code)))
	b.WriteString("</code></dd>\n")
	if requestID != "" {
		b.WriteString("<dt>Request</dt><dd><code>")
		b.WriteString(html.EscapeString(requestID))
		b.WriteString("</code></dd>\n")
	}
	b.WriteString("</dl>\n</main>\n</body>\n</html>\n")
	return []byte(b.String())
}

const style = `:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; display: grid; min-height: 100vh; place-items: center; }
main { max-width: 34rem; padding: 2rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: .25rem 1rem; margin: 1.5rem 0 0; font-size: .875rem; opacity: .75; }
dd { margin: 0; overflow-wrap: anywhere; }
`

// offers are the available forms; the first one wins among forms that a client likes equally.
var offers = []struct{ accepts, kind string }{
	{"application/json", typeJSON}, {"text/html", typeHTML}, {"text/plain", typeText},
}

// preferred is the form that the client likes best (RFC 9110, section 12.5.1), and text for
// clients without a preference.
func preferred(r *http.Request) string {
	if r == nil {
		return typeText
	}
	best, most, named := typeText, 0, false
	for _, offer := range offers {
		q, level := quality(r.Header.Values("Accept"), offer.accepts)
		if q > most {
			best, most, named = offer.kind, q, level > 0
		}
	}
	if !named {
		return typeText
	}
	return best
}

// quality is how much an offer is liked, in thousandths, by the most specific range that includes
// it, and how specific that is: from 0 for everything to 2 for the offer.
func quality(accept []string, offer string) (q, specific int) {
	kind, _, _ := strings.Cut(offer, "/")
	specific = -1
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(item, ";")
			level := -1
			switch strings.ToLower(strings.TrimSpace(name)) {
			case offer:
				level = 2
			case kind + "/*":
				level = 1
			case "*/*":
				level = 0
			}
			if level > specific {
				q, specific = qvalue.Parse(params), level
			}
		}
	}
	return q, specific
}
