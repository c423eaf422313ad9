package page

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/hangar-platform/hangar"
)

func TestPreferred(t *testing.T) {
	for accept, want := range map[string]string{
		"":    typeText,
		"*/*": typeText,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": typeHTML,
		"application/json":                           typeJSON,
		"Application/JSON ; charset=utf-8":           typeJSON,
		"application/json, text/plain, */*":          typeJSON,
		"application/*":                              typeJSON,
		"text/*":                                     typeHTML,
		"text/plain":                                 typeText,
		"text/html;q=0.5, application/json;q=0.6":    typeJSON,
		"text/html;q=0.5, application/json;q=0.4":    typeHTML,
		"text/html;q=0, */*":                         typeText,
		"application/json;q=0, text/*":               typeHTML,
		"text/html;q=NaN, application/json;q=0.1":    typeJSON,
		"image/png":                                  typeText,
		"text/css,*/*;q=0.1":                         typeText,
		"application/json;q=0.3;x=y, */*;q=0.2, ,;;": typeJSON,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if got := preferred(r); got != want {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
	}
}

const hostile = `<script>alert(1)</script> & "quotes"`

func answer(method, accept string) *http.Response {
	r := httptest.NewRequest(method, "/", http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	w.Header().Set("Etag", `"of another body"`)
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Server", hangar.EdgeProduct)
	Write(w, r, &hangar.EdgeError{Code: hangar.EdgeNoCandidate, Status: 503, Message: hostile, Err: io.EOF}, `01HX"<b>-loc`)
	return w.Result()
}

func TestWrite(t *testing.T) {
	for accept, kind := range map[string]string{"text/html": typeHTML, "application/json": typeJSON, "*/*": typeText} {
		res := answer(http.MethodGet, accept)
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		h := res.Header
		if res.StatusCode != http.StatusServiceUnavailable || h.Get("Content-Type") != kind || h.Get("platform-error-code") != "PR03" || h.Get("fly-error-code") != "PR03" ||
			h.Get("Cache-Control") != "no-store" || h.Get("Etag") != "" || h.Get("Content-Encoding") != "" || h.Get("Server") == "" ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Length") != strconv.Itoa(len(body)) {
			t.Errorf("%s: %d, %v", accept, res.StatusCode, h)
		}
		if strings.Contains(string(body), "EOF") {
			t.Errorf("%s: the cause is shown", accept)
		}
		head := answer(http.MethodHead, accept)
		if b, err := io.ReadAll(head.Body); err != nil || len(b) != 0 || head.Header.Get("Content-Length") != h.Get("Content-Length") {
			t.Errorf("%s: HEAD has %d bytes, %v, %v", accept, len(b), err, head.Header)
		}
		switch kind {
		case typeJSON:
			var p Problem
			if err := json.Unmarshal(body, &p); err != nil || p != (Problem{hostile, hangar.EdgeNoCandidate, 503, `01HX"<b>-loc`}) {
				t.Errorf("%s: %+v, %v", body, p, err)
			}
		case typeText:
			if want := "[PR03] " + hostile + ` (request 01HX"<b>-loc)` + "\n"; string(body) != want {
				t.Errorf("%q, want %q", body, want)
			}
		}
	}
}

// TestHTML: the page is HTML that loads nothing, and external input is text in it.
func TestHTML(t *testing.T) {
	root, err := html.Parse(answer(http.MethodGet, "text/html").Body)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			text.WriteString(n.Data)
		}
		if n.Type == html.ElementNode {
			switch n.Data {
			case "script", "link", "img", "iframe", "a", "b":
				t.Errorf("there is a %s", n.Data)
			}
			for _, a := range n.Attr {
				if a.Key == "src" || a.Key == "href" {
					t.Errorf("it loads %s", a.Val)
				}
			}
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
	}
	walk(root)
	for _, want := range []string{hostile, "503 Service Unavailable", "PR03", `01HX"<b>-loc`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestStatusThatIsNone(t *testing.T) {
	for _, status := range []int{0, 200, 302, 600} {
		w := httptest.NewRecorder()
		Write(w, nil, &hangar.EdgeError{Code: hangar.EdgeInternal, Status: status, Message: "m"}, "")
		if w.Code != http.StatusBadGateway || w.Body.String() != "[PH99] m\n" {
			t.Errorf("%d: %d, %q", status, w.Code, w.Body)
		}
	}
}

func FuzzPreferred(f *testing.F) {
	for _, seed := range []string{"text/html, */*;q=0.1", "application/json;q=0", ";,/;q=", "text/*;q=0.5"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		r := &http.Request{Header: http.Header{"Accept": {accept}}}
		named := strings.ToLower(accept)
		switch got := preferred(r); {
		case got == typeJSON && !strings.Contains(named, "application/"), got == typeHTML && !strings.Contains(named, "text/"):
			t.Fatalf("%q gets %s", accept, got)
		}
	})
}
