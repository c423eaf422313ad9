package remote

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestNothingIsWrittenAfterTheEnd of an exchange: a timer may be about to write when it ends, and the
// server panics over a write to what is not there any more.
func TestNothingIsWrittenAfterTheEnd(t *testing.T) {
	var out *frameWriter
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &served{r: r, control: http.NewResponseController(w)}
		x.out = &frameWriter{w: w, flush: x.control.Flush}
		out = x.out
		defer x.finish()
		if err := x.out.write(kindResult, nil); err != nil {
			t.Error(err)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) != frameHeader {
		t.Errorf("got %q, %v", b, err)
	}
	_ = resp.Body.Close()
	server.Close()
	if out.write(kindEnd, nil) == nil || out.raw([]byte("frame")) == nil {
		t.Error("it is written to an exchange that has ended")
	}
}
