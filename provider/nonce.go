package provider

import (
	"strings"
	"sync"
)

// The length of a nonce in bytes. Shorter ones would repeat by chance.
const (
	minNonce = 16
	maxNonce = 128
)

func validNonce(nonce string) bool {
	if len(nonce) < minNonce || len(nonce) > maxNonce {
		return false
	}
	for _, c := range []byte(nonce) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// nonces remembers at most max nonces of requests that could still be replayed. When it
// is full, it forgets the oldest nonces, and from then on refuses requests with timestamps as
// old. So it never accepts a replay.
type nonces struct {
	max int

	mu       sync.Mutex
	floor    Timestamp // lowest timestamp that is accepted; it never decreases
	seen     map[string]struct{}
	bySecond map[Timestamp][]string
}

func newNonces(limit int) *nonces {
	return &nonces{max: limit, seen: map[string]struct{}{}, bySecond: map[Timestamp][]string{}}
}

// use records a nonce. It returns a reason to refuse the request, or "". Requests with timestamps
// before oldest are refused from now on.
func (n *nonces) use(nonce string, at, oldest Timestamp) (refusal string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if oldest > n.floor {
		n.raise(oldest)
	}
	if _, used := n.seen[nonce]; used {
		return "the nonce was used before"
	}
	const forgotten = "too many requests: the nonces of that time are forgotten"
	if at < n.floor {
		return forgotten
	}
	if len(n.seen) >= n.max {
		second := n.oldest()
		if at <= second {
			return forgotten
		}
		n.raise(second + 1)
	}
	nonce = strings.Clone(nonce) // it may be a part of a long query
	n.seen[nonce] = struct{}{}
	n.bySecond[at] = append(n.bySecond[at], nonce)
	return ""
}

// raise sets the floor and forgets older nonces.
func (n *nonces) raise(floor Timestamp) {
	n.floor = floor
	for second, list := range n.bySecond {
		if second < floor {
			for _, nonce := range list {
				delete(n.seen, nonce)
			}
			delete(n.bySecond, second)
		}
	}
}

// oldest returns the lowest timestamp of the known nonces. There must be one.
func (n *nonces) oldest() Timestamp {
	first, oldest := true, Timestamp(0)
	for second := range n.bySecond {
		if first || second < oldest {
			first, oldest = false, second
		}
	}
	return oldest
}
