package stream

import (
	"github.com/superfly/ltx"
)

// News returns a channel that is closed when a replica acknowledges a transaction, connects or disconnects.
func (s *Sender) News() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news == nil {
		s.news = make(chan struct{})
	}
	return s.news
}

// announce closes the channel of News. The caller holds s.mu.
func (s *Sender) announce() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// Announce wakes the waiters for News.
func (s *Sender) Announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce()
}

// confirm records that the replica has the transaction that it named in its hello.
func (f *follower) confirm(name string, id ltx.TXID, acknowledged func()) {
	f.mu.Lock()
	f.confirmed[name] = max(f.confirmed[name], id)
	f.mu.Unlock()
	acknowledged()
}

// Connected is a connected replica.
type Connected struct {
	Node      uint64
	Hostname  string
	Candidate bool
}

// Followers returns the connected replicas that have, for each database of marks, its transaction or a later one. A
// replica acknowledges what is in its log, which survives the end of its process, and with database.Config.Sync also
// a loss of power.
func (s *Sender) Followers(marks map[string]ltx.TXID) []Connected {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Connected
	for f := range s.followers {
		if f.has(marks) {
			all = append(all, Connected{f.node, f.name, f.candidate})
		}
	}
	return all
}

func (f *follower) has(marks map[string]ltx.TXID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, id := range marks {
		if f.confirmed[name] < id {
			return false
		}
	}
	return true
}
