package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Bounds of a halt lock, those of LiteFS.
const (
	HaltTTL     = 30 * time.Second
	HaltTimeout = 10 * time.Second // for acquiring it
)

// halt is the right of a client to write to a database of this primary, while local programs may not.
type halt struct {
	id      string
	epoch   uint64 // in which the lock counts
	expires time.Time
}

type halts struct {
	mu   sync.Mutex
	held map[string]*halt // by database
}

// of reports whether a database is halted.
func (h *halts) of(db string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(db) != nil
}

// get returns the lock of a database unless it has expired. The caller holds h.mu.
func (h *halts) get(db string) *halt {
	l := h.held[db]
	if l != nil && !time.Now().Before(l.expires) {
		delete(h.held, db)
		return nil
	}
	return l
}

// take takes or renews the lock of a database. It reports false if another client holds it.
func (h *halts) take(db, id string, epoch uint64) (halt, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.get(db); l != nil && (l.id != id || l.epoch != epoch) {
		return halt{}, false
	}
	h.held[db] = &halt{id, epoch, time.Now().Add(HaltTTL)}
	return *h.held[db], true
}

// release releases the lock, and reports whether it was held.
func (h *halts) release(db, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.get(db); l == nil || l.id != id {
		return false
	}
	delete(h.held, db)
	return true
}

// holds reports whether the lock is held.
func (h *halts) holds(db, id string, epoch uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.get(db)
	return l != nil && l.id == id && l.epoch == epoch
}

// Halted is the response of POST /halt.
type Halted struct {
	ID      string    `json:"id"`
	Epoch   uint64    `json:"epoch"` // in which the lock counts; POST /tx names it
	Pos     HaltedPos `json:"pos"`   // from which the holder continues
	Expires time.Time `json:"expires"`
}

// HaltedPos is a position, with the keys that LiteFS uses there.
type HaltedPos struct {
	TXID     string `json:"txID"`
	Checksum string `json:"postApplyChecksum"`
}

// ErrHalted is returned for a halt lock that another client has.
var ErrHalted = errors.New("another client has the halt lock of the database")

// halt keeps local programs from writing to a database, for the holder of a lock.
func (n *Node) halt(ctx context.Context, db *database.DB, id string) (Halted, error) {
	ctx, cancel := context.WithTimeout(ctx, HaltTimeout)
	defer cancel()
	for {
		epoch := n.epoch()
		if !n.Writable() {
			return Halted{}, database.ErrFenced
		}
		l, ok := n.halts.take(db.Name(), id, epoch)
		if !ok {
			if pause.For(ctx, 10*time.Millisecond) != nil {
				return Halted{}, ErrHalted
			}
			continue
		}
		if err := (transfer{n}).quietOf(ctx, db); err != nil {
			n.halts.release(db.Name(), id)
			return Halted{}, err
		}
		pos := db.Pos()
		return Halted{ID: id, Epoch: epoch, Pos: HaltedPos{pos.TXID.String(), pos.PostApplyChecksum.String()}, Expires: l.expires}, nil
	}
}

func (n endpoints) serveHalt(w http.ResponseWriter, r *http.Request) {
	name, id := r.URL.Query().Get("name"), r.URL.Query().Get("id")
	if name == "" || id == "" {
		http.Error(w, "name and id required", http.StatusBadRequest)
		return
	}
	db := n.Find(name)
	if db == nil {
		http.Error(w, "database not found", http.StatusNotFound)
		return
	}
	if r.Method == http.MethodDelete {
		if !n.halts.release(name, id) {
			http.Error(w, "the lock is not held", http.StatusNotFound)
		}
		return
	}
	if !n.strict {
		http.Error(w, "with capture tail, programs cannot be kept from writing", http.StatusNotImplemented)
		return
	}
	l, err := n.halt(r.Context(), db, id)
	if errors.Is(err, ErrHalted) {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	if err != nil {
		n.refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(l); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// serveTx commits the transaction in an LTX file, for the holder of a halt lock.
func (n endpoints) serveTx(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name, id := query.Get("name"), query.Get("lockID")
	epoch, err := strconv.ParseUint(query.Get("epoch"), 10, 64)
	if name == "" || id == "" || err != nil {
		http.Error(w, "name, lockID and epoch required", http.StatusBadRequest)
		return
	}
	db := n.Find(name)
	if db == nil {
		http.Error(w, "database not found", http.StatusNotFound)
		return
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, txlog.MaxRecord))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	t, err := txlog.Decode(b)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The lock may expire after this check. If a local program commits before Accept, the transaction
	// no longer follows the position, and Accept returns ErrDiverged.
	if !n.halts.holds(name, id, epoch) || epoch != n.epoch() {
		http.Error(w, "the lock is not held", http.StatusConflict)
		return
	}
	err = db.Accept(r.Context(), t, b, epoch)
	if err == nil {
		err = programs(n).Replicated(r.Context(), db)
	}
	switch {
	case errors.Is(err, database.ErrDiverged):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, database.ErrFenced), errors.Is(err, ErrNotSynced):
		n.refuse(w, err)
	case err != nil:
		n.fail(w, r, err)
	default:
		w.Header().Set("Hangar-Db-Position", t.Pos().String())
		fmt.Fprintln(w, t.Pos())
	}
}
