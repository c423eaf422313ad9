package hangar

import (
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// AppID identifies an App permanently: 16 characters of a-z and 0-9. No other App ever gets it, not
// even a later one of the same name.
type AppID string

// OrgID identifies an organization permanently, as AppID does an App.
type OrgID string

// AppName names an App; unique on the server, at most 63 characters of a-z, 0-9 and dash. Another App
// may get it once this one is destroyed. So the name is for people and requests, and everything that is
// stored about an App is found by its AppID.
type AppName string

// OrgSlug names an organization. Like an AppName, it may pass to another one later.
type OrgSlug string

// OrgPersonal is the organization that every server has from its first start.
const OrgPersonal OrgSlug = "personal"

// MachineID identifies a Machine and is never reused: 14 lowercase hexadecimal characters.
type MachineID string

// InstanceID identifies one config version of a Machine: a ULID of 26 characters.
type InstanceID string

// EventID identifies an event: a ULID, so that events sort by time.
type EventID string

// Valid reports whether the id has the shape of an EventID.
func (id EventID) Valid() bool {
	_, err := ulid.ParseStrict(string(id))
	return err == nil
}

// HostID identifies a server that runs Machines: 8 lowercase hexadecimal characters.
type HostID string

// Region is the three-letter code of a place with hosts.
type Region string

// NetworkID numbers a private network. It is the second and third group of every
// address in the network and is never given to another one.
type NetworkID uint32

// NewMachineID returns a random MachineID.
func NewMachineID() MachineID {
	var b [7]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return MachineID(hex.EncodeToString(b[:]))
}

// Valid reports whether the id has the shape of a MachineID.
func (id MachineID) Valid() bool {
	if len(id) != 14 {
		return false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// NewInstanceID returns an InstanceID that sorts after those made before it.
func NewInstanceID(now time.Time) InstanceID { return InstanceID(newULID(now)) }

// NewEventID returns an EventID that sorts by now.
func NewEventID(now time.Time) EventID { return EventID(newULID(now)) }

// ulids hands out ULIDs that never sort before an earlier one of this process,
// also within a millisecond and when the clock steps back.
var ulids struct {
	sync.Mutex
	last uint64 // milliseconds
	*ulid.MonotonicEntropy
}

func newULID(now time.Time) string {
	ulids.Lock()
	defer ulids.Unlock()
	if ulids.MonotonicEntropy == nil {
		ulids.MonotonicEntropy = ulid.Monotonic(rand.Reader, 0)
	}
	ulids.last = max(ulids.last, ulid.Timestamp(now))
	return ulid.MustNew(ulids.last, ulids.MonotonicEntropy).String()
}

// MachineRef names a Machine within its App; both must match. The caller of a service names
// the App; control fills AppID in, and from there on AppID alone identifies the App. If a
// caller gives an AppID, it must be that of the named App.
type MachineRef struct {
	App   AppName
	AppID AppID
	ID    MachineID
}

// PrivateIP is a Machine's address on its private network.
type PrivateIP = netip.Addr
