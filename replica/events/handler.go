package events

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// writeTimeout bounds how long a subscriber may take to read an event.
const writeTimeout = 10 * time.Second

// Finder finds a database by its name, or returns nil.
type Finder func(name string) *database.DB

// Handler serves the events of a Hub, one line of JSON for each, until the client disconnects. It
// aborts the connection of a subscriber that does not keep up.
//
// The query parameter since=NAME:TXID, which may be repeated, requests the transactions of a database
// after that ID. They come first, from the log. The answer is 410 if the log no longer has them.
func (h *Hub) Handler(find Finder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "Method not allowed", http.StatusMethodNotAllowed)
			return
		}
		s, err := h.Subscribe()
		if err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer s.Cancel()
		replays, err := s.replays(r.URL.Query()["since"], find)
		if err != nil {
			status := http.StatusBadRequest
			if errors.Is(err, txlog.ErrGone) {
				status = http.StatusGone
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if err := s.serve(w, r, replays); err != nil {
			panic(http.ErrAbortHandler)
		}
	})
}

// replay is the part of a log that a subscriber receives first.
type replay struct {
	name string
	log  *txlog.Reader
	last ltx.TXID
}

func (s *Subscription) replays(since []string, find Finder) ([]replay, error) {
	var all []replay
	for _, v := range since {
		i := strings.LastIndexByte(v, ':')
		if i < 0 {
			return nil, fmt.Errorf("since=%s: want NAME:TXID", v)
		}
		id, err := ltx.ParseTXID(v[i+1:])
		if err != nil {
			return nil, fmt.Errorf("since=%s: %w", v, err)
		}
		db := find(v[:i])
		if db == nil {
			return nil, fmt.Errorf("since=%s: no such database", v)
		}
		last := s.Positions[v[:i]].TXID
		if id > last {
			return nil, fmt.Errorf("since=%s: the database is at %s: %w", v, last, txlog.ErrGone)
		}
		log, err := db.Log().AfterID(id)
		if err != nil {
			return nil, fmt.Errorf("since=%s: %w", v, err)
		}
		all = append(all, replay{v[:i], log, last})
	}
	return all, nil
}

// errLost ends the connection of a slow subscriber.
var errLost = errors.New("the subscriber does not keep up")

func (s *Subscription) serve(w http.ResponseWriter, r *http.Request, replays []replay) error {
	control := http.NewResponseController(w)
	write := func(line []byte) error {
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		_, err := w.Write(line)
		return err
	}
	if err := write(<-s.C); err != nil {
		return err
	}
	for _, p := range replays {
		if err := p.send(write); err != nil {
			return err
		}
	}
	for {
		if err := control.Flush(); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.Lost:
			return errLost
		case line, ok := <-s.C:
			if !ok {
				return nil
			}
			if err := s.writeAll(write, line); err != nil {
				return err
			}
		}
	}
}

// writeAll writes a line and all that are queued after it.
func (s *Subscription) writeAll(write func([]byte) error, line []byte) error {
	for {
		if err := write(line); err != nil {
			return err
		}
		select {
		case <-s.Lost:
			return errLost
		default:
		}
		var ok bool
		select {
		case line, ok = <-s.C:
			if !ok {
				return nil
			}
		default:
			return nil
		}
	}
}

// send writes the events of a part of a log.
func (p replay) send(write func([]byte) error) error {
	defer p.log.Close()
	for {
		b, err := p.log.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		t, err := txlog.DecodeMeta(b)
		if err != nil {
			return err
		}
		if t.MaxTXID > p.last {
			return nil
		}
		c := database.Change{Name: p.name, Pos: t.Pos(), PageSize: t.PageSize, Pages: t.Commit, Timestamp: t.Timestamp}
		if err := write(Transaction(c)); err != nil {
			return err
		}
		if t.MaxTXID == p.last {
			return nil
		}
	}
}
