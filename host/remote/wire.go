package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// call is the first frame of a request.
type call struct {
	Args []json.RawMessage `json:"args"`
	// Timeout is how long the caller waits, in milliseconds; 0: for as long as it takes.
	Timeout int64 `json:"timeout_ms,omitempty"`
	// The fields below are what hosts read from the context: the lease holder, its nonce, and the
	// cause of an event.
	Subject string             `json:"subject,omitempty"`
	Nonce   string             `json:"nonce,omitempty"`
	Source  hangar.EventSource `json:"source,omitempty"`
}

// newCall describes a call that is made with ctx.
func newCall(ctx context.Context, args []any) (call, error) {
	c := call{Args: make([]json.RawMessage, len(args)), Nonce: hangar.LeaseNonceFrom(ctx), Source: hangar.EventSourceFrom(ctx)}
	if p, err := hangar.PrincipalFrom(ctx); err == nil {
		c.Subject = p.Subject
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.Timeout = max(1, time.Until(deadline).Milliseconds())
	}
	for i, arg := range args {
		raw, err := encode(arg)
		if err != nil {
			return call{}, err
		}
		c.Args[i] = raw
	}
	return c, nil
}

// context returns ctx with the caller's values for the host, and its deadline.
func (c *call) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = hangar.WithEventSource(hangar.WithLeaseNonce(ctx, c.Nonce), c.Source)
	if c.Subject != "" {
		ctx = hangar.WithPrincipal(ctx, hangar.Principal{Subject: c.Subject})
	}
	if c.Timeout > 0 {
		return context.WithTimeout(ctx, time.Duration(c.Timeout)*time.Millisecond)
	}
	return context.WithCancel(ctx)
}

// fault is an error on its way.
type fault struct {
	Code    hangar.Code `json:"code,omitempty"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message"`
	// Reset says that a connection was reset beyond the peer.
	Reset bool `json:"reset,omitempty"`
}

// faultOf describes an error. Causes stay where they are, in the log of their host.
func faultOf(err error) fault {
	f := fault{Code: hangar.CodeOf(err), Reason: hangar.ReasonOf(err), Message: hangar.MessageOf(err)}
	if _, known := errors.AsType[*hangar.Error](err); !known {
		f.Reset = errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	}
	return f
}

// rebuild is the error that faultOf described.
func (f fault) rebuild() error {
	if f.Reset {
		return syscall.ECONNRESET
	}
	return &hangar.Error{Code: f.Code, Reason: f.Reason, Message: f.Message}
}

// rebuilt is the error that the payload of a kindError describes.
func rebuilt(payload []byte) error {
	var f fault
	if err := json.Unmarshal(payload, &f); err != nil {
		return err
	}
	return f.rebuild()
}

// Between hosts, secrets travel, and what the API does not show. The types below have such fields,
// which hide those of the types that they embed.

type secretsOnWire struct {
	Version int               `json:"version"`
	Values  map[string]string `json:"values"`
}

func reveal(s hangar.SecretValues) secretsOnWire {
	w := secretsOnWire{Version: s.Version}
	if s.Values != nil {
		w.Values = make(map[string]string, len(s.Values))
	}
	for name, value := range s.Values {
		w.Values[name] = value.Reveal()
	}
	return w
}

func (w secretsOnWire) hide() hangar.SecretValues {
	s := hangar.SecretValues{Version: w.Version}
	if w.Values != nil {
		s.Values = make(map[string]hangar.Sensitive, len(w.Values))
	}
	for name, value := range w.Values {
		s.Values[name] = hangar.NewSensitive(value)
	}
	return s
}

type specOnWire struct {
	hangar.MachineSpec

	Secrets secretsOnWire
}

type updateOnWire struct {
	hangar.MachineUpdate

	Secrets secretsOnWire
}

// stopOnWire has the number of a signal, whose own JSON has no word for none.
type stopOnWire struct {
	Signal  int
	Timeout time.Duration
}

type restartOnWire struct {
	stopOnWire

	ForceStop bool
}

type snapshotOnWire struct {
	*hangar.Snapshot

	AppID hangar.AppID `json:"app_id"`
}

// encode writes an argument or a result.
func encode(v any) (json.RawMessage, error) {
	switch t := v.(type) {
	case hangar.MachineSpec:
		v = specOnWire{t, reveal(t.Secrets)}
	case hangar.MachineUpdate:
		v = updateOnWire{t, reveal(t.Secrets)}
	case hangar.Signal:
		v = int(t)
	case hangar.MachineStop:
		v = stopOnWire{int(t.Signal), t.Timeout}
	case hangar.MachineRestart:
		v = restartOnWire{stopOnWire{int(t.Signal), t.Timeout}, t.ForceStop}
	case *hangar.Snapshot:
		if t != nil {
			v = snapshotOnWire{t, t.AppID}
		}
	case []*hangar.Snapshot:
		list := slices.Grow([]snapshotOnWire(nil), len(t))[:len(t)]
		for i, s := range t {
			list[i] = snapshotOnWire{s, s.AppID}
		}
		v = list
	}
	return hangar.EncodeJSON(v)
}

// decode reads into p what encode wrote.
func decode(raw json.RawMessage, p any) error {
	switch t := p.(type) {
	case *hangar.MachineSpec:
		var w specOnWire
		if err := json.Unmarshal(raw, &w); err != nil {
			return err
		}
		*t = w.MachineSpec
		t.Secrets = w.Secrets.hide()
	case *hangar.MachineUpdate:
		var w updateOnWire
		if err := json.Unmarshal(raw, &w); err != nil {
			return err
		}
		*t = w.MachineUpdate
		t.Secrets = w.Secrets.hide()
	case *hangar.Signal:
		return json.Unmarshal(raw, (*int)(t))
	case *hangar.MachineStop:
		var w stopOnWire
		err := json.Unmarshal(raw, &w)
		*t = w.stop()
		return err
	case *hangar.MachineRestart:
		var w restartOnWire
		err := json.Unmarshal(raw, &w)
		*t = hangar.MachineRestart{MachineStop: w.stop(), ForceStop: w.ForceStop}
		return err
	case **hangar.Snapshot:
		var w snapshotOnWire
		if err := json.Unmarshal(raw, &w); err != nil {
			return err
		}
		*t = w.snapshot()
	case *[]*hangar.Snapshot:
		var list []snapshotOnWire
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		if list == nil {
			return nil
		}
		*t = make([]*hangar.Snapshot, len(list))
		for i, w := range list {
			(*t)[i] = w.snapshot()
		}
	case **hangar.Machine:
		m, err := decodeMachine(raw)
		*t = m
		return err
	case *[]*hangar.Machine:
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		if list == nil {
			return nil
		}
		*t = make([]*hangar.Machine, len(list))
		for i, raw := range list {
			m, err := decodeMachine(raw)
			if err != nil {
				return err
			}
			(*t)[i] = m
		}
	default:
		return json.Unmarshal(raw, p)
	}
	return nil
}

func (w stopOnWire) stop() hangar.MachineStop {
	return hangar.MachineStop{Signal: hangar.Signal(w.Signal), Timeout: w.Timeout}
}

func (w snapshotOnWire) snapshot() *hangar.Snapshot {
	if w.Snapshot != nil {
		w.Snapshot.AppID = w.AppID
	}
	return w.Snapshot
}

// decodeMachine reads a Machine whose config was normalised before it was written, so that need not
// be done again.
func decodeMachine(raw json.RawMessage) (*hangar.Machine, error) {
	if bytes.Equal(raw, []byte("null")) {
		return nil, nil //nolint:nilnil // as it was sent
	}
	m := new(hangar.Machine)
	stored := (*machinejson.Pool)(nil).Stored(m)
	if err := json.Unmarshal(raw, &stored); err != nil {
		return nil, err
	}
	stored.Restore()
	return m, nil
}

// argument decodes the argument of a call at an index.
func argument[A any](c *call, i int) (A, error) {
	var a A
	if err := decode(c.Args[i], &a); err != nil {
		return a, hangar.Errorf(hangar.CodeInvalid, "", "argument %d of a call between hosts cannot be read: %w", i, err)
	}
	return a, nil
}

// errOtherVersion is the error of a call that this version cannot take.
func errOtherVersion(method, why string) error {
	return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "the host runs another version of hangar: %s", fmt.Sprintf(why, method))
}
