package stream

import (
	"github.com/superfly/ltx"
)

// News returns a channel that is closed when a replica has acknowledged a transaction, has come or has gone.
func (s *Sender) News() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news == nil {
		s.news = make(chan struct{})
	}
	return s.news
}

// tell closes the channel of News. The caller holds s.mu.
func (s *Sender) tell() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// Announce wakes all that wait for News.
func (s *Sender) Announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell()
}

// confirm records that the replica has a transaction that it named in its hello.
func (f *follower) confirm(name string, id ltx.TXID, acknowledged func()) {
	f.mu.Lock()
	f.confirmed[name] = max(f.confirmed[name], id)
	f.mu.Unlock()
	acknowledged()
}

// Connected is a replica that follows.
type Connected struct {
	Node      uint64
	Hostname  string
	Candidate bool
}

// Followers returns the replicas that follow and have, for each database of marks, its transaction or a later one. A
// replica has what its log has: that outlives its process, and with synchronous transactions its machine.
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
