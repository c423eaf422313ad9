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

// form is the content of an object.
type form string

const (
	// single has transactions one by one, each an LTX file preceded by its length.
	single form = "txs"
	// merged is one LTX file that leads from the first position to the last.
	merged form = "ltx"
	// snapshot is one LTX file with all pages.
	snapshot form = "snap"
)

// item is one object of a backup. All its fields except size are in its name, so a restore finds its
// objects by their names.
type item struct {
	form  form
	from  ltx.Pos // position before it; zero for a snapshot
	to    ltx.Pos // position after it
	epoch uint64  // of the primary that stored it
	begun int64   // when that primary began to store, in milliseconds since 1970
	// first and last are the commit times of its transactions, in milliseconds since 1970. They are
	// equal if the object has only one state.
	first, last int64
	size        int64
}

// empty is the position of a database before its first transaction.
var empty = ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}

// compare orders items from old to new. The epoch counts before the transaction, because extra
// transactions of a former primary are not part of the database. Of two items that lead to the same
// transaction, a snapshot is newer, then the one with fewer transactions.
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

// dirOf is the prefix of a database's objects.
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

// at converts the time of a transaction.
func at(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }
