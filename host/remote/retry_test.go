package remote

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
)

// cutting answers with a frame that breaks off after some bytes, and then with all of it.
type cutting struct {
	answer []byte
	after  int
	calls  int
}

func (c *cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	c.calls++
	body := io.Reader(bytes.NewReader(c.answer))
	if c.calls == 1 {
		body = io.MultiReader(bytes.NewReader(c.answer[:c.after]), broken{})
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestAnswerIsCutAnywhere: a call that may be repeated is, any other is not, and no part of an answer
// is taken for the whole.
func TestAnswerIsCutAnywhere(t *testing.T) {
	var answer bytes.Buffer
	raw, err := encode(&hangar.Machine{ID: "1", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFrame(&answer, kindResult, raw); err != nil {
		t.Fatal(err)
	}
	for after := range answer.Len() {
		c := &cutting{answer: answer.Bytes(), after: after}
		p := newPeer(t.Context(), hangar.Host{ID: "0000bbbb", Address: "peer:1"}, c)
		got, err := agent{p}.Machine(t.Context(), hangar.MachineRef{})
		if err != nil || got.Name != "web" || c.calls != 2 {
			t.Errorf("after %d bytes: got %+v %v in %d calls", after, got, err, c.calls)
		}
		c.calls = 0
		got, err = agent{p}.UpdateMachine(t.Context(), hangar.MachineRef{}, hangar.MachineUpdate{})
		if hangar.CodeOf(err) != hangar.CodeUnavailable || hangar.ReasonOf(err) != "" || got != nil || c.calls != 1 {
			t.Errorf("after %d bytes: got %+v %v in %d calls", after, got, err, c.calls)
		}
		if p.circuit.open() {
			t.Errorf("after %d bytes: the host counts as away", after)
		}
		p.close()
	}
}

// TestFrames: a length that is a lie takes no memory, and one beyond the bound is refused.
func TestFrames(t *testing.T) {
	lie := []byte{byte(kindResult), 0x0f, 0xff, 0xff, 0xff, 'x'}
	if _, _, err := readFrame(bytes.NewReader(lie), maxAnswer); err != io.ErrUnexpectedEOF { //nolint:errorlint // as documented
		t.Errorf("got %v", err)
	}
	lie[1] = 0xff
	if _, _, err := readFrame(bytes.NewReader(lie), maxAnswer); err == nil {
		t.Error("a frame of 4 GiB was read")
	}
}

// TestCircuit: while a peer is away, one call at a time finds out.
func TestCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the first pause is shorter than one of a busy machine may be
		var c circuit
		if !c.allow() || c.open() {
			t.Fatal("it is open from the start")
		}
		c.fail()
		if c.allow() || !c.open() {
			t.Error("it lets calls through after a failure")
		}
		time.Sleep(minCircuitPause)
		if c.open() || !c.allow() || c.allow() {
			t.Error("not one call finds out")
		}
		c.abandon()
		if !c.allow() {
			t.Error("after one that gave up, no other finds out")
		}
		c.succeed()
		if c.open() || !c.allow() || !c.allow() {
			t.Error("it does not recover")
		}
	})
}
