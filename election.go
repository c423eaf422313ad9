package hangar

import (
	"context"
	"regexp"
	"time"
	"unicode/utf8"
)

// The bounds of elections. An App has few clusters of programs, with few members and small records.
const (
	MaxElections        = 4        // of an App
	MaxElectionRecords  = 64       // of an election
	MaxElectionSize     = 64 << 10 // bytes of the keys and values of an election
	MaxElectionSessions = 64       // of an election, not counting ended ones
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
	Revision int64             `json:"revision"`          // of the change that wrote it
	Session  ElectionSessionID `json:"session,omitempty"` // the record ends with this session; empty: it stays
}

// Election holds the records by which the Machines of an App agree on a leader. Each record has the
// number of the change that wrote it. Numbers only grow while the election exists.
type Election struct {
	Name     ElectionName     `json:"name"`
	Revision int64            `json:"revision"` // of the last change; 0: there was none
	Version  string           `json:"version"`  // differs when a record has changed or has ended with its session
	Records  []ElectionRecord `json:"records"`  // sorted by key
}

// ElectionQuery says how an election is read.
type ElectionQuery struct {
	After string        // wait while the election has this version
	Wait  time.Duration // at most
}

// ElectionCondition requires that a record has a revision, or with 0, that the key has no record.
type ElectionCondition struct {
	Key      string `json:"key"`
	Revision int64  `json:"revision"`
}

// ElectionPut is a record to write.
type ElectionPut struct {
	Key     string            `json:"key"`
	Value   string            `json:"value"`
	Session ElectionSessionID `json:"session,omitempty"` // the record ends with this session; empty: it stays
}

// ElectionChange writes and deletes records if all of If holds.
type ElectionChange struct {
	If     []ElectionCondition `json:"if,omitempty"`
	Put    []ElectionPut       `json:"put,omitempty"`
	Delete []string            `json:"delete,omitempty"` // keys; a missing one is not an error
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

// ElectionChanged is the result of an ElectionChange.
type ElectionChanged struct {
	Changed  bool  `json:"changed"`  // false: a condition did not hold, and nothing was changed
	Revision int64 `json:"revision"` // of the election: after the change, or when a condition failed
}

// ElectionSessionOpen is the request for a session.
type ElectionSessionOpen struct {
	TTL Duration `json:"ttl"` // how long the session lasts without renewal: MinElectionTTL to MaxElectionTTL
}

// Validate answers CodeInvalid.
func (o ElectionSessionOpen) Validate() error {
	if ttl := time.Duration(o.TTL); ttl < MinElectionTTL || ttl > MaxElectionTTL {
		return Errorf(CodeInvalid, "", "invalid ttl: %s must be between %s and %s", o.TTL, MinElectionTTL, MaxElectionTTL)
	}
	return nil
}

// ElectionSession says that a member is alive. When it ends, its records are removed.
type ElectionSession struct {
	ID  ElectionSessionID `json:"id"`
	TTL Duration          `json:"ttl"` // how long it lasts from the request on, at least
}

// ElectionService manages the elections of Apps. The first change or session creates an election, and
// the end of its App removes it. A Machine of the App may call everything but RemoveElection. Other
// callers need ActionRead to read and ActionControl for the rest.
//
// Every method answers CodeNotFound with ReasonAppNotFound, CodeForbidden, and CodeInvalid for a bad name.
type ElectionService interface {
	// Election returns an election, or an empty one if there is none of this name. With q.After it
	// waits until the version differs. It answers CodeExhausted when too many callers wait.
	Election(ctx context.Context, app AppName, name ElectionName, q ElectionQuery) (*Election, error)
	// ChangeElection changes all of the records or none. It answers CodeNotFound with
	// ReasonSessionNotFound if a named session has ended, and CodeExhausted if the election or the App
	// would exceed its bounds. A change that answered CodeUnavailable or CodeInternal may have
	// happened.
	ChangeElection(ctx context.Context, app AppName, name ElectionName, in ElectionChange) (ElectionChanged, error)
	// OpenElectionSession begins a session. It answers CodeExhausted if there are too many.
	OpenElectionSession(ctx context.Context, app AppName, name ElectionName, in ElectionSessionOpen) (ElectionSession, error)
	// RenewElectionSession makes a session last for its TTL from now on. It answers CodeNotFound with
	// ReasonSessionNotFound if it has ended.
	RenewElectionSession(ctx context.Context, app AppName, name ElectionName, id ElectionSessionID) (ElectionSession, error)
	// EndElectionSession ends a session and removes its records. It may be repeated.
	EndElectionSession(ctx context.Context, app AppName, name ElectionName, id ElectionSessionID) error
	// RemoveElection removes an election with all records and sessions. A later election of the same
	// name numbers its changes from the beginning. It may be repeated.
	RemoveElection(ctx context.Context, app AppName, name ElectionName) error
}

// MayElect reports whether a caller may take part in the elections of an App: it is one of the App's
// Machines, or may control the App.
func MayElect(ctx context.Context, p Principal, target Target) bool {
	self, ok := SelfFrom(ctx)
	return ok && self.AppID == target.AppID && self.AppID != "" || p.May(ActionControl, target)
}
