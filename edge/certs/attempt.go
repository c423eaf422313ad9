package certs

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// Pace says how long to wait after a failure. Waits double from one failure of a name to the
// next.
type Pace struct {
	Away    time.Duration // after the ACME server could not be reached, or has failed
	Refused time.Duration // after it has refused an order
	Most    time.Duration // maximum of both
	Limited time.Duration // after a rate limit without a time
	Again   time.Duration // minimum, even if the owner asks for a retry
}

// DefaultPace stays below what well-known servers allow: five failed validations of a name in
// an hour.
func DefaultPace() Pace {
	return Pace{Away: 5 * time.Second, Refused: 10 * time.Minute, Most: 12 * time.Hour, Limited: time.Hour, Again: 10 * time.Second}
}

const (
	maxErrors   = 5 // of a name are kept
	codeOther   = "internal"
	jitter      = 0.1 // share of a wait that is added at random, so that retries of names spread
	maxDoubling = 20
	maxAhead    = time.Minute // of the clock of another edge
)

// attempt is a failed order for a name's certificate, with the failures before it. It never
// changes.
type attempt struct {
	Org          hangar.OrgID              `json:"org_id,omitempty"` // the owner at that time
	Failures     int                       `json:"failures"`
	At           time.Time                 `json:"at"`   // of the last failure
	Next         time.Time                 `json:"next"` // earliest next order
	LimitedUntil time.Time                 `json:"limited_until,omitzero"`
	Errors       []hangar.CertificateError `json:"errors"` // newest first
}

// future reports whether an attempt was recorded while a clock was ahead, so that its times mean nothing.
func (a *attempt) future(now time.Time) bool { return a.At.After(now.Add(maxAhead)) }

// attempts has the attempt of each name whose last order has failed.
type attempts struct {
	disk disk
	mu   sync.Mutex // guards of
	of   map[hangar.Hostname]*attempt
}

// restore reads the attempts from the disk, and drops unreadable ones.
func (a *attempts) restore() error {
	a.of = map[hangar.Hostname]*attempt{}
	return each(a.disk.attempts(), attemptExt, func(name hangar.Hostname, data []byte, err error) {
		var found attempt
		if err == nil && json.Unmarshal(data, &found) == nil {
			a.of[name] = &found
		}
	})
}

// get returns the attempt of a name, unless it is in the future; nil: there is none.
func (a *attempts) get(name hangar.Hostname) *attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := a.of[name]; last != nil && !last.future(time.Now()) {
		return last
	}
	return nil
}

// next returns when a certificate for a name may be ordered again.
func (a *attempts) next(name hangar.Hostname, now time.Time) time.Time {
	if last := a.get(name); last != nil && last.Next.After(now) {
		return last.Next
	}
	return now
}

// before are the names that were to be ordered again before a time.
func (a *attempts) before(end time.Time) (names []hangar.Hostname) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, last := range a.of {
		if last.Next.Before(end) {
			names = append(names, name)
		}
	}
	return names
}

func (a *attempts) put(name hangar.Hostname, next *attempt) error {
	a.mu.Lock()
	a.of[name] = next
	a.mu.Unlock()
	b, err := json.Marshal(next)
	if err == nil {
		err = write(a.disk.attempts(), fileOf(name, attemptExt), b)
	}
	return err
}

func (a *attempts) forget(name hangar.Hostname) error {
	a.mu.Lock()
	_, known := a.of[name]
	delete(a.of, name)
	a.mu.Unlock()
	if !known {
		return nil
	}
	return durable.Remove(filepath.Join(a.disk.attempts(), fileOf(name, attemptExt)))
}

// after returns the attempt for a failure that follows last, which may be nil. retryAt is the time
// that the server has named for a retry; zero: none.
func (p Pace) after(last *attempt, err error, retryAt, now time.Time) *attempt {
	if last == nil {
		last = &attempt{}
	}
	next := &attempt{Failures: last.Failures + 1, At: now.UTC()}
	shown := describe(err, now)
	next.Errors = append([]hangar.CertificateError{shown}, last.Errors...)
	next.Errors = next.Errors[:min(len(next.Errors), maxErrors)]
	wait := p.Refused
	if shown.Code == codeOther || shown.Code == typeOf(acme.ProblemTypeServerInternal) {
		wait = p.Away
	}
	wait = min(wait<<min(last.Failures, maxDoubling), p.Most)
	if wait <= 0 {
		wait = p.Most
	}
	wait += time.Duration(rand.Float64() * jitter * float64(wait)) //nolint:gosec // not a secret
	next.Next = now.Add(wait).UTC()
	if shown.Code == typeOf(acme.ProblemTypeRateLimited) || retryAt.After(now) {
		next.LimitedUntil = cmp.Or(retryAt, limitIn(shown.Message), now.Add(p.Limited)).UTC()
		if next.LimitedUntil.After(next.Next) {
			next.Next = next.LimitedUntil
		}
	}
	return next
}

func typeOf(problem string) string {
	return strings.TrimPrefix(problem, acme.ProblemTypeNamespace)
}

// describe explains a failure to the owner of a name.
func describe(err error, now time.Time) hangar.CertificateError {
	shown := hangar.CertificateError{
		Code: codeOther, Message: "The ACME server could not be asked, or has failed",
		Remediation: "Nothing to do: it is asked again. The operator of the platform finds the cause in the daemon's log.", Timestamp: now.UTC().Truncate(time.Second),
	}
	problem, ok := errors.AsType[acme.Problem](err)
	if !ok {
		return shown
	}
	if problem.Type == acme.ProblemTypeCompound && len(problem.Subproblems) > 0 {
		problem = problem.Subproblems[0].Problem
	}
	shown.Code, shown.Message, shown.Remediation = codeOther, problem.Detail, "Point the name straight at the App's addresses. It is asked for again later."
	if code, ok := strings.CutPrefix(problem.Type, acme.ProblemTypeNamespace); ok {
		shown.Code = code
	}
	shown.Message = cmp.Or(shown.Message, problem.Title, "The ACME server has refused without saying why")
	if text, ok := remediations[problem.Type]; ok {
		shown.Remediation = text
	}
	return shown
}

// remediations say what the owner of a name can do about an error.
var remediations = map[string]string{
	acme.ProblemTypeCAA:                "Allow the certificate authority in the CAA records of the name, or remove them.",
	acme.ProblemTypeDNS:                "Give the name A, AAAA or CNAME records that point to the App, and wait until they have spread.",
	acme.ProblemTypeConnection:         "Point the name at the App's addresses, and let nothing block ports 80 and 443 on the way.",
	acme.ProblemTypeTLS:                "Point the name straight at the App's addresses: something in between answers TLS on port 443.",
	acme.ProblemTypeUnauthorized:       "Point the name at the App's addresses only: another server has answered.",
	acme.ProblemTypeIncorrectResponse:  "Point the name at the App's addresses only: another server has answered.",
	acme.ProblemTypeRateLimited:        "Wait: the certificate authority issues no more for a while.",
	acme.ProblemTypeRejectedIdentifier: "The certificate authority does not issue certificates for this name. Upload one of another authority.",
}

// limitTime matches the end of a rate limit in the error texts of Let's Encrypt.
var limitTime = regexp.MustCompile(`retry after (\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}) ?(?:UTC|Z)`)

// limitIn finds a time in the text of an error; zero: there is none.
func limitIn(text string) time.Time {
	found := limitTime.FindStringSubmatch(text)
	if found == nil {
		return time.Time{}
	}
	at, err := time.Parse(time.DateTime, found[1]+" "+found[2])
	if err != nil {
		return time.Time{}
	}
	return at
}
