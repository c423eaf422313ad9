package backup

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/superfly/ltx"
)

// form is what an object holds.
type form string

const (
	// single has the transactions one by one, each as an LTX file with its length before it.
	single form = "txs"
	// merged is one LTX file that leads from the first position to the last.
	merged form = "ltx"
	// snapshot is one LTX file with all pages.
	snapshot form = "snap"
)

// item is one object of a backup: all that is needed to find a way to a time is in its name.
type item struct {
	form  form
	from  ltx.Pos // before it; the zero position for a snapshot
	to    ltx.Pos // after it
	epoch uint64  // of the primary that stored it
	begun int64   // when that one began to store, in milliseconds since 1970
	// first and last are when its transactions were committed, in milliseconds since 1970; the same for
	// one that has but one state.
	first, last int64
	size        int64
}

// empty is the position of a database before its first transaction.
var empty = ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}

// compare orders items by what is newer: the epoch counts more than the transaction, since the
// extra transactions of a former primary are not part of the database. Of two that lead to the
// same transaction, a snapshot is the newer one, then that with fewer transactions.
func (i item) compare(j item) int {
	return cmp.Or(cmp.Compare(i.epoch, j.epoch), cmp.Compare(i.begun, j.begun), cmp.Compare(i.to.TXID, j.to.TXID),
		cmp.Compare(i.whole(), j.whole()), cmp.Compare(i.from.TXID, j.from.TXID))
}

func (i item) whole() int {
	if i.form == snapshot {
		return 1
	}
	return 0
}

// dirOf is where the objects of a database are.
func dirOf(db string) string { return "db/" + url.PathEscape(db) + "/" }

// name returns the name of the object.
func (i item) name(db string) string {
	return fmt.Sprintf("%s%016x-%016x-%016x-%016x-%08x-%012x-%012x-%012x.%s", dirOf(db),
		uint64(i.from.TXID), uint64(i.to.TXID), uint64(i.from.PostApplyChecksum), uint64(i.to.PostApplyChecksum),
		i.epoch, i.begun, i.first, i.last, i.form)
}

// parseItem parses a name. It reports false for other objects.
func parseItem(name string, size int64) (db string, i item, ok bool) {
	dir, file := path.Split(name)
	escaped, ok := strings.CutPrefix(strings.TrimSuffix(dir, "/"), "db/")
	if !ok {
		return "", item{}, false
	}
	db, err := url.PathUnescape(escaped)
	if err != nil {
		return "", item{}, false
	}
	i.size = size
	_, err = fmt.Sscanf(file, "%016x-%016x-%016x-%016x-%x-%x-%x-%x.%s", (*uint64)(&i.from.TXID), (*uint64)(&i.to.TXID),
		(*uint64)(&i.from.PostApplyChecksum), (*uint64)(&i.to.PostApplyChecksum), &i.epoch, &i.begun, &i.first, &i.last, (*string)(&i.form))
	known := i.form == single || i.form == merged || i.form == snapshot
	return db, i, err == nil && known && i.name(db) == name
}

// at is the time of a transaction.
func at(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }
