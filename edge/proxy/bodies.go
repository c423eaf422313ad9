package proxy

import (
	"sync"

	"github.com/hangar-platform/hangar"
)

// orgShare is the fraction of the room for bodies that one organization can take, as its divisor,
// so that room is left for others.
const orgShare = 4

// bodyRoom accounts for the bytes of buffered bodies, for each organization and for all. An
// organization has an entry only while it has bodies, so there are no more entries than requests in
// flight.
type bodyRoom struct {
	most bodyBytes // of all organizations

	mu    sync.Mutex // guards the fields below
	taken bodyBytes
	of    map[hangar.OrgID]bodyBytes
}

// bodyBytes are bytes in memory and in files.
type bodyBytes struct{ memory, spool int64 }

func (b bodyBytes) plus(o bodyBytes) bodyBytes {
	return bodyBytes{b.memory + o.memory, b.spool + o.spool}
}

func (b bodyBytes) within(memory, spool int64) bool { return b.memory <= memory && b.spool <= spool }

func newBodyRoom(most bodyBytes) *bodyRoom {
	return &bodyRoom{most: most, of: map[hangar.OrgID]bodyBytes{}}
}

// take accounts for more bytes of an organization, or reports that there is no room for them.
func (r *bodyRoom) take(org hangar.OrgID, more bodyBytes) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, own := r.taken.plus(more), r.of[org].plus(more)
	if !all.within(r.most.memory, r.most.spool) || !own.within(r.most.memory/orgShare, r.most.spool/orgShare) {
		return false
	}
	r.taken, r.of[org] = all, own
	return true
}

// give returns bytes.
func (r *bodyRoom) give(org hangar.OrgID, bytes bodyBytes) {
	if bytes == (bodyBytes{}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	back := bodyBytes{-bytes.memory, -bytes.spool}
	r.taken = r.taken.plus(back)
	if own := r.of[org].plus(back); own == (bodyBytes{}) {
		delete(r.of, org)
	} else {
		r.of[org] = own
	}
}
