package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// recordHead is the size of a record's header: epoch and length.
const recordHead = 12

// ServeRecords answers with the transactions of a database after a position, from its log. A node that becomes the
// primary fetches the transactions that it lacks. The answer is 410 if the log was never at the position, or no
// longer goes back to it.
func (s *Sender) ServeRecords(w http.ResponseWriter, r *http.Request) {
	pos, err := parsePos(r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	db := s.Primary.Find(r.URL.Query().Get("name"))
	if db == nil {
		http.Error(w, "database not found", http.StatusNotFound)
		return
	}
	log, err := db.Log().After(pos)
	switch {
	case errors.Is(err, txlog.ErrGone):
		http.Error(w, err.Error(), http.StatusGone)
		return
	case err != nil:
		s.Log.Error("a log cannot be read", "db", db.Name(), "error", err)
		http.Error(w, "Internal server error", http.StatusInternalServerError)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", ContentType)
	for {
		b, err := log.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		var head [recordHead]byte
		binary.BigEndian.PutUint64(head[:], log.Epoch())
		binary.BigEndian.PutUint32(head[8:], uint32(len(b)))
		if err == nil {
			_, err = w.Write(head[:])
		}
		if err == nil {
			_, err = w.Write(b) //nolint:gosec // browsers do not render this content type
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// Fetch applies the transactions that another node has after the position of a database. It returns their number.
func Fetch(ctx context.Context, client *http.Client, node string, db *database.DB) (int, error) {
	pos := db.Pos()
	if pos.TXID == 0 {
		pos = ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}
	}
	query := url.Values{"name": {db.Name()}, "after": {pos.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(node, "/")+"/log?"+query.Encode(), nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return 0, fmt.Errorf("%s answers %s: %s", node, resp.Status, strings.TrimSpace(string(text)))
	}
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for n := 0; ; n++ {
		var head [recordHead]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
		size := binary.BigEndian.Uint32(head[8:])
		if size > txlog.MaxRecord {
			return n, fmt.Errorf("%w: record of %d bytes", errFrame, size)
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(in, b); err != nil {
			return n, err
		}
		t, err := txlog.Decode(b)
		if err != nil {
			return n, err
		}
		if err := db.Apply(ctx, t, b, binary.BigEndian.Uint64(head[:])); err != nil {
			return n, fmt.Errorf("apply %s of %s: %w", t.MinTXID, db.Name(), err)
		}
	}
}
