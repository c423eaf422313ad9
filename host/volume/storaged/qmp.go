package storaged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// patience bounds a command. Commands wait for nothing but the disk.
const patience = 30 * time.Second

// qmpError is the daemon's answer to a failed command.
type qmpError struct {
	Class string `json:"class"`
	Text  string `json:"desc"`
}

func (e *qmpError) Error() string { return e.Text }

// args are the arguments of a command.
type args map[string]any

// message is any message from the daemon.
type message struct {
	ID     uint64          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *qmpError       `json:"error"`
	Event  string          `json:"event"`
	Data   struct {
		ID string `json:"id"`
	} `json:"data"`
}

// qmp is a client of QEMU's machine protocol: one command at a time, with events in between.
type qmp struct {
	conn net.Conn
	dec  *json.Decoder

	mu      sync.Mutex // held during a command
	last    uint64     // id of the newest command
	removed map[string]bool
	broken  error
}

// dialQMP connects to the socket of a daemon, which accepts one client at a time.
func dialQMP(ctx context.Context, socket string) (*qmp, error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	q := &qmp{conn: conn, dec: json.NewDecoder(conn), removed: map[string]bool{}}
	if err := q.greet(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return q, nil
}

func (q *qmp) greet(ctx context.Context) error {
	if err := q.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var hello struct {
		QMP *struct{} `json:"QMP"`
	}
	if err := q.dec.Decode(&hello); err != nil {
		return fmt.Errorf("greeting of the storage daemon: %w", err)
	}
	if hello.QMP == nil {
		return errors.New("the answering process is no storage daemon")
	}
	return q.do(ctx, "qmp_capabilities", nil, nil)
}

func (q *qmp) close() error { return q.conn.Close() }

// do runs a command and decodes its answer into result, unless that is nil.
func (q *qmp) do(ctx context.Context, command string, in args, result any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	answer, err := q.ask(ctx, command, in)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer, result)
}

// ask sends a command and reads until its answer. The caller holds q.mu.
func (q *qmp) ask(ctx context.Context, command string, in args) (json.RawMessage, error) {
	if q.broken != nil {
		return nil, q.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.last++
	request := map[string]any{"execute": command, "id": q.last}
	if in != nil {
		request["arguments"] = in
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	// The deadline does not depend on ctx: the daemon completes a command even if the caller stops
	// waiting.
	if err := q.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := q.conn.Write(raw); err != nil {
		return nil, q.breaks(err)
	}
	for {
		m, err := q.read()
		switch {
		case err != nil:
			return nil, q.breaks(err)
		case m.Event != "" || m.ID != q.last: // an event, or the answer to an earlier client's command
		case m.Error != nil:
			return nil, m.Error
		default:
			return m.Return, nil
		}
	}
}

func (q *qmp) read() (message, error) {
	var m message
	if err := q.dec.Decode(&m); err != nil {
		return m, err
	}
	if m.Event == "BLOCK_EXPORT_DELETED" {
		q.removed[m.Data.ID] = true
	}
	return m, nil
}

func (q *qmp) breaks(err error) error {
	q.broken = fmt.Errorf("storage daemon: %w", err)
	return q.broken
}

// unexport removes an export and waits until its node is no longer in use. A missing export is not
// an error.
func (q *qmp) unexport(ctx context.Context, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.removed, id)
	_, err := q.ask(ctx, "block-export-del", args{"id": id, "mode": "hard"})
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("block-export-del: %w", err)
	}
	for !q.removed[id] {
		if _, err := q.read(); err != nil {
			return q.breaks(err)
		}
	}
	return nil
}

// isAbsent reports whether a command failed because its object is missing. The daemon has an error
// class for only a few such cases.
func isAbsent(err error) bool {
	e, ok := errors.AsType[*qmpError](err)
	return ok && (e.Class == "DeviceNotFound" || absentText.MatchString(e.Text))
}
