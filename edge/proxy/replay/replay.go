// Package replay reads a Machine's answer that sends the request to another Machine, and
// remembers where requests were sent.
//
// An Instruction comes as a header (Parse) or as a JSON body (ParseJSON). It is complete and makes
// sense, or there is none: both parsers refuse what they do not understand, with a hangar.EdgeError
// of code EdgeReplayInvalid whose message names the field. An instruction's changes to a request
// (Transform.Apply) can neither smuggle a second request into the first nor name headers that are
// the edge's own.
//
// A Cache may be used by any number of goroutines; everything else is plain values.
//
// The package finds no Machine and sends no request.
package replay

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// Fallback says what becomes of a request that could not be replayed.
type Fallback string

// The fallbacks that a Machine can ask for when the request finds no target.
const (
	FallbackNone   Fallback = ""            // the client gets an error
	FallbackForce  Fallback = "force_self"  // back to the Machine that answered, and to no other
	FallbackPrefer Fallback = "prefer_self" // back to it or, if it is gone, to any of its App
)

// Instruction is where a request is to go, and how.
type Instruction struct {
	// Regions are in order of preference: codes, and words for several as Region.Covers
	// takes them; empty: every region.
	Regions []hangar.Region
	// AnyRegion says that every other region comes after Regions. Without it, no other does.
	AnyRegion      bool
	Instance       hangar.MachineID // this one and no other
	PreferInstance hangar.MachineID // this one, if it is available
	App            hangar.AppName   // empty: that of the Machine that answered
	State          string           // for the target, in hangar.HeaderReplaySource
	Elsewhere      bool             // not to the Machine that answered
	Timeout        time.Duration    // until the target is found; 0: as always
	Fallback       Fallback
	Transform      *Transform // nil: the request goes as it came
	Cache          *CacheRule // nil: nothing is to be remembered or forgotten
}

// Transform is how a replayed request differs from the original one.
type Transform struct {
	Path          string   // path and query; empty: unchanged
	DeleteHeaders []string // canonical
	SetHeaders    []hangar.Header
}

// CacheRule says for which requests the target is to be remembered.
type CacheRule struct {
	Host        string // in lower case, without a port; empty: the request's
	Prefix      string // of the path, which ends with a slash
	TTL         time.Duration
	Invalidate  bool // forget what is remembered for the request; nothing else is set
	AllowBypass bool // clients may ask not to be sent by memory
}

// Bounds of an Instruction.
const (
	MaxJSON       = 64 << 10 // bytes of the JSON form
	MaxState      = 4 << 10  // bytes of a state
	MaxTimeout    = 10 * time.Minute
	MinTTL        = 10 * time.Second
	MaxTTL        = 24 * time.Hour // longer ones are cut
	maxHeader     = 8 << 10        // bytes of the header form
	maxRegions    = 64
	maxPath       = 8 << 10
	maxTransforms = 64 // headers
)

// IsJSON reports whether an answer of a Machine is the JSON form of an instruction.
func IsJSON(h http.Header) bool {
	of := h["Content-Type"]
	if len(of) == 0 {
		return false
	}
	kind, _, _ := strings.Cut(of[0], ";")
	kind = strings.TrimSpace(kind)
	return strings.EqualFold(kind, hangar.ReplayTypes.Neutral) || strings.EqualFold(kind, hangar.ReplayTypes.Original)
}

// Asked reports whether an answer of a Machine holds an instruction in either form.
func Asked(h http.Header) bool {
	_, has := header(h, keyReplay)
	return has || IsJSON(h)
}

// refused is the error of an invalid instruction.
func refused(format string, args ...any) error {
	return &hangar.EdgeError{
		Code: hangar.EdgeReplayInvalid, Status: http.StatusBadGateway,
		Message: "the app asked for a replay that makes no sense: " + fmt.Sprintf(format, args...),
	}
}
