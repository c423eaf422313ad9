package wsmux_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar/internal/wsmux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEcho sends pieces of many sizes to a peer that sends each back.
func TestEcho(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		conn := wsmux.New(ws)
		for {
			stream, payload, err := conn.Receive(r.Context())
			if err != nil || conn.Send(r.Context(), stream+1, payload) != nil {
				return
			}
		}
	}))
	defer server.Close()
	ws, _, err := websocket.Dial(t.Context(), server.URL, &websocket.DialOptions{HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	conn := wsmux.New(ws)
	for _, size := range []int{0, 1, wsmux.MaxPayload - 1, wsmux.MaxPayload, wsmux.MaxPayload + 1, 3*wsmux.MaxPayload + 7} {
		sent := bytes.Repeat([]byte{byte(size), 'x'}, size/2+1)[:size]
		if err := conn.Send(t.Context(), 4, sent); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for first := true; first || len(got) < size; first = false {
			stream, payload, err := conn.Receive(t.Context())
			if err != nil || stream != 5 || len(payload) > wsmux.MaxPayload {
				t.Fatalf("received %d bytes of stream %d, %v", len(payload), stream, err)
			}
			got = append(got, payload...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back as %d others", size, len(got))
		}
	}
	if n, err := io.WriteString(conn.Writer(t.Context(), 1), ""); n != 0 || err != nil {
		t.Errorf("an empty write gives %d, %v", n, err)
	}
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Receive(t.Context()); err == nil {
		t.Error("a peer that broke the protocol stays connected")
	}
}
