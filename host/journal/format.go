package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/internal/boltfile"
)

// format is the version of the buckets' content. Open refuses every other version.
const format = 1

// The buckets of the file.
var (
	bucketFormat   = []byte("hangar journal") // "version" → decimal format
	bucketSettings = []byte("settings")       // key → value
	bucketMachines = []byte("machines")       // id → Record
	bucketEvents   = []byte("events")         // series of hangar.Event
	bucketVersions = []byte("versions")       // series of hangar.MachineVersion
	bucketLeases   = []byte("leases")         // id → hangar.Lease
	bucketHealth   = []byte("health")         // id → Health
	bucketBusy     = []byte("busy")           // id → time until which the Machine is busy
	bucketSecrets  = []byte("secrets")        // id, zero byte, version → encrypted
	bucketOutbox   = []byte("outbox")         // seq, id → 0 changed, or 1 deleted and the App
	bucketLatest   = []byte("outbox latest")  // id → seq of its entry in the outbox
	bucketVolumes  = []byte("volumes")        // id → VolumeRecord

	// Destroyed Machines, which a start does not read.
	bucketDestroyed      = []byte("destroyed")       // id → Record
	bucketDestroyedIndex = []byte("destroyed index") // see destroyedKeys

	bucketFeed = []byte("event feed") // number → hangar.MachineEvent, of all Machines

	// Like outbox and outbox latest, but for volumes; an entry ends with the App.
	bucketVolumeOutbox = []byte("volume outbox")
	bucketVolumeLatest = []byte("volume outbox latest")

	// Empty; only their sequences are used.
	bucketCommits      = []byte("commits")      // one for each Commit
	bucketTransactions = []byte("transactions") // one for each transaction
	bucketNumbers      = []byte("numbers")      // see Tx.NextNumber
)

var keyVersion = []byte("version")

func buckets() [][]byte {
	return [][]byte{
		bucketFormat, bucketSettings, bucketMachines, bucketEvents, bucketVersions, bucketOutbox, bucketLatest,
		bucketCommits, bucketTransactions, bucketNumbers, bucketLeases, bucketHealth, bucketSecrets,
		bucketVolumes, bucketVolumeOutbox, bucketVolumeLatest, bucketBusy, bucketDestroyed, bucketDestroyedIndex,
		bucketFeed,
	}
}

// addedBuckets were added to the format later; Open adds them to a journal that lacks them.
func addedBuckets() [][]byte {
	return [][]byte{
		bucketLeases, bucketHealth, bucketSecrets, bucketVolumes, bucketVolumeOutbox, bucketVolumeLatest, bucketBusy,
		bucketDestroyed, bucketDestroyedIndex, bucketFeed,
	}
}

// addBuckets adds missing addedBuckets to a journal.
func addBuckets(db *bolt.DB) error {
	complete := true
	err := boltfile.View(db, func(tx *bolt.Tx) error {
		for _, name := range addedBuckets() {
			complete = complete && tx.Bucket(name) != nil
		}
		return nil
	})
	if err != nil || complete {
		return err
	}
	return boltfile.Update(db, func(tx *bolt.Tx) error {
		for _, name := range addedBuckets() {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeFormat turns an empty database into a journal.
func writeFormat(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketFormat).Put(keyVersion, strconv.AppendInt(nil, format, 10))
}

func checkFormat(tx *bolt.Tx) error {
	b := tx.Bucket(bucketFormat)
	if b == nil {
		return fmt.Errorf("%w: the file is a database of another program", ErrFormat)
	}
	v, err := strconv.Atoi(string(b.Get(keyVersion)))
	switch {
	case err != nil:
		return fmt.Errorf("%w: format version %q", ErrFormat, b.Get(keyVersion))
	case v != format:
		return fmt.Errorf("%w: the file has format %d, this hangar reads format %d", ErrFormat, v, format)
	}
	for _, name := range buckets() {
		added := slices.ContainsFunc(addedBuckets(), func(b []byte) bool { return bytes.Equal(b, name) })
		if tx.Bucket(name) == nil && !added {
			return fmt.Errorf("%w: %q is missing in it", ErrFormat, name)
		}
	}
	return nil
}

// stamp numbers the transaction, so that afterFailure can tell whether a failed commit is visible.
func stamp(tx *bolt.Tx) (uint64, error) { return tx.Bucket(bucketTransactions).NextSequence() }

// The layout of bbolt that checkFile needs: a file starts with two copies of a meta page, each a
// header of 16 bytes and then these fields in native byte order.
const (
	metaMagic    = 0xED0CDAED
	metaOffset   = 16
	metaLen      = 64
	metaPageSize = 8  // uint32
	metaPages    = 40 // uint64: pages in use
	metaTx       = 48 // uint64: number of the transaction that wrote it
	metaSum      = 56 // uint64: FNV-1a of all fields before
)

// checkFile refuses a file that is not a database, or is shorter than its own meta page says. The
// file is mapped, and touching a missing page is fatal.
func checkFile(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is no regular file", ErrFormat)
	}
	first, err := readMeta(f, 0)
	if err != nil {
		return err
	}
	// The second copy is one page further. If the first is damaged, the page size is unknown; it is
	// this machine's, unless the file was moved here.
	pageSize := int64(os.Getpagesize())
	if first != nil {
		pageSize = first.pageSize
	}
	second, err := readMeta(f, pageSize)
	if err != nil {
		return err
	}
	newest := first
	if newest == nil || second != nil && second.tx > first.tx {
		newest = second
	}
	if newest == nil {
		return fmt.Errorf("%w: no database header in it", ErrFormat)
	}
	if need := newest.pages * newest.pageSize; info.Size() < need {
		return fmt.Errorf("%w: it was cut off at %d of %d bytes", ErrFormat, info.Size(), need)
	}
	return nil
}

type meta struct {
	pageSize, pages int64
	tx              uint64
}

// readMeta returns nil for an invalid meta page.
func readMeta(f io.ReaderAt, offset int64) (*meta, error) {
	var b [metaLen]byte
	if _, err := f.ReadAt(b[:], offset+metaOffset); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSum]) // a hash never fails
	order := binary.NativeEndian
	m := &meta{
		pageSize: int64(order.Uint32(b[metaPageSize:])),
		pages:    int64(order.Uint64(b[metaPages:])),
		tx:       order.Uint64(b[metaTx:]),
	}
	if order.Uint32(b[:]) != metaMagic || order.Uint64(b[metaSum:]) != sum.Sum64() || m.pageSize <= 0 || m.pages <= 0 {
		return nil, nil
	}
	return m, nil
}
