package hangar

import (
	"context"
	"regexp"
	"time"
	"unicode/utf8"
)

// The bounds of elections. An App has few clusters of programs, and each of those few members, which say little.
const (
	MaxElections        = 4        // of an App
	MaxElectionRecords  = 64       // of an election
	MaxElectionSize     = 64 << 10 // bytes of the keys and values of an election
	MaxElectionSessions = 64       // of an election, that have not ended
	MaxElectionWaits    = 64       // of an App, at one time
	MinElectionTTL      = time.Second
	MaxElectionTTL      = time.Minute
	MaxElectionWait     = 30 * time.Second
)

// ElectionName names an election within its App.
type ElectionName string

// ElectionSessionID names a session within its election.
type ElectionSessionID string

var (
	electionName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	electionKey  = regexp.MustCompile(`^[a-zA-Z0-9._/-]{1,128}$`)
)

// Validate answers CodeInvalid for what cannot be the name of an election.
func (n ElectionName) Validate() error {
	if !electionName.MatchString(string(n)) {
		return Errorf(CodeInvalid, "", "invalid election: %.100q must have 1 to 63 characters of a-z, 0-9 and dash, and neither begin nor end with a dash", string(n))
	}
	return nil
}

// ElectionRecord is a value under a key of an election.
type ElectionRecord struct {
	Key      string            `json:"key"`
	Value    string            `json:"value"`
	Revision int64             `json:"revision"`          // of the change that gave it its value
	Session  ElectionSessionID `json:"session,omitempty"` // with which it goes; empty: it stays
}

// Election is what the Machines of an App write down to agree who of them leads: a few records, each with the number
// of the change that made it. Numbers only grow while there is the election.
type Election struct {
	Name     ElectionName     `json:"name"`
	Revision int64            `json:"revision"` // of the last change; 0: there was none
	Version  string           `json:"version"`  // differs when a record has changed, or has gone with its session
	Records  []ElectionRecord `json:"records"`  // sorted by key
}

// ElectionQuery says how an election is read.
type ElectionQuery struct {
	After string        // wait while the election has this version
	Wait  time.Duration // for so long at most
}

// ElectionCondition is that a record has a revision; 0: that there is no record of the key.
type ElectionCondition struct {
	Key      string `json:"key"`
	Revision int64  `json:"revision"`
}

// ElectionPut is a record to write.
type ElectionPut struct {
	Key     string            `json:"key"`
	Value   string            `json:"value"`
	Session ElectionSessionID `json:"session,omitempty"` // with which it is to go
}

// ElectionChange writes and deletes records if all of If holds.
type ElectionChange struct {
	If     []ElectionCondition `json:"if,omitempty"`
	Put    []ElectionPut       `json:"put,omitempty"`
	Delete []string            `json:"delete,omitempty"` // keys; one that does not exist is no error
}

// Validate answers CodeInvalid and names the field that is wrong.
func (c ElectionChange) Validate() error {
	if len(c.If) > MaxElectionRecords || len(c.Put)+len(c.Delete) > MaxElectionRecords {
		return Errorf(CodeInvalid, "", "invalid change: has more than %d conditions or records", MaxElectionRecords)
	}
	if len(c.Put)+len(c.Delete) == 0 {
		return Errorf(CodeInvalid, "", "invalid put: there is nothing to change")
	}
	seen := map[string]bool{}
	check := func(field, key string, once bool) error {
		switch {
		case !electionKey.MatchString(key):
			return Errorf(CodeInvalid, "", "invalid %s.key: %.140q must have 1 to 128 letters, digits and . _ / -", field, key)
		case once && seen[key]:
			return Errorf(CodeInvalid, "", "invalid %s.key: %q occurs twice", field, key)
		}
		seen[key] = seen[key] || once
		return nil
	}
	for _, cond := range c.If {
		if err := check("if", cond.Key, false); err != nil {
			return err
		}
	}
	for _, put := range c.Put {
		if err := check("put", put.Key, true); err != nil {
			return err
		}
		if !utf8.ValidString(put.Value) {
			return Errorf(CodeInvalid, "", "invalid put.value: of %q is not UTF-8", put.Key)
		}
	}
	for _, key := range c.Delete {
		if err := check("delete", key, true); err != nil {
			return err
		}
	}
	return nil
}

// ElectionChanged is what has come of a change.
type ElectionChanged struct {
	Changed  bool  `json:"changed"`  // false: a condition did not hold, and nothing was changed
	Revision int64 `json:"revision"` // of the election, after the change or, if nothing was changed, as it was compared
}

// ElectionSessionOpen is the request for a session.
type ElectionSessionOpen struct {
	TTL Duration `json:"ttl"` // for how long the session lasts without being renewed: MinElectionTTL to MaxElectionTTL
}

// Validate answers CodeInvalid.
func (o ElectionSessionOpen) Validate() error {
	if ttl := time.Duration(o.TTL); ttl < MinElectionTTL || ttl > MaxElectionTTL {
		return Errorf(CodeInvalid, "", "invalid ttl: %s must be between %s and %s", o.TTL, MinElectionTTL, MaxElectionTTL)
	}
	return nil
}

// ElectionSession is a time in which a member is alive: records that are bound to it go when it ends.
type ElectionSession struct {
	ID  ElectionSessionID `json:"id"`
	TTL Duration          `json:"ttl"` // for which it lasts from the request on; it may last longer, and never ends earlier
}

// ElectionService keeps the elections of Apps. An election is made by the first change or session of it, and goes with its
// App. A Machine may ask all but RemoveElection of its own App's, and for others the right to control the App is
// needed, to read ActionRead.
//
// Every method answers CodeNotFound with ReasonAppNotFound, CodeForbidden, and CodeInvalid for a bad name.
type ElectionService interface {
	// Election returns an election, an empty one if there is none of the name. With q.After it waits until the version
	// is another one. It answers CodeExhausted when too many wait.
	Election(ctx context.Context, app AppName, name ElectionName, q ElectionQuery) (*Election, error)
	// ChangeElection changes records, all or none. It answers CodeNotFound with ReasonSessionNotFound if a session of
	// it has ended, and CodeExhausted if the election or the App would have too much. A change that ended with
	// CodeUnavailable or CodeInternal may have happened.
	ChangeElection(ctx context.Context, app AppName, name ElectionName, in ElectionChange) (ElectionChanged, error)
	// OpenElectionSession begins a session. It answers CodeExhausted if there are too many.
	OpenElectionSession(ctx context.Context, app AppName, name ElectionName, in ElectionSessionOpen) (ElectionSession, error)
	// RenewElectionSession has a session last for its time from now on. It answers CodeNotFound with
	// ReasonSessionNotFound if it has ended.
	RenewElectionSession(ctx context.Context, app AppName, name ElectionName, id ElectionSessionID) (ElectionSession, error)
	// EndElectionSession ends a session, and its records. It may be repeated.
	EndElectionSession(ctx context.Context, app AppName, name ElectionName, id ElectionSessionID) error
	// RemoveElection removes an election with all records and sessions. Another election of the same name numbers
	// from the beginning. It may be repeated.
	RemoveElection(ctx context.Context, app AppName, name ElectionName) error
}

// MayElect reports whether a caller may take part in the elections of an App: whether it is one of its Machines, or may
// control it.
func MayElect(ctx context.Context, p Principal, target Target) bool {
	self, ok := SelfFrom(ctx)
	return ok && self.AppID == target.AppID && self.AppID != "" || p.May(ActionControl, target)
}
