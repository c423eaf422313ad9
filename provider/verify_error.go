package provider

import "net/http"

// Rule is what a request must satisfy to be accepted.
type Rule string

// The rules, in the order in which a Verifier checks them.
const (
	RuleMethod     Rule = "method"     // GET, DELETE, POST or PATCH
	RuleSize       Rule = "size"       // a body of at most VerifierConfig.MaxBody bytes
	RuleBody       Rule = "body"       // readable, and absent if it would not be signed
	RuleSignature  Rule = "signature"  // exactly one, by a valid secret
	RuleParameters Rule = "parameters" // url, nonce and timestamp, once each and well-formed
	RuleTimestamp  Rule = "timestamp"  // within Window
	RuleURL        Rule = "url"        // signed for the URL that was requested
	RuleNonce      Rule = "nonce"      // not seen before
)

// VerifyError says which rule a request broke.
type VerifyError struct {
	Rule   Rule
	Reason string // for the log of the server; it contains nothing of the request
	Err    error  // the cause of a RuleBody, or nil
}

func refuse(rule Rule, reason string) *VerifyError { return &VerifyError{Rule: rule, Reason: reason} }

// Error names the rule and the reason.
func (e *VerifyError) Error() string {
	text := "provider: refused by rule " + string(e.Rule) + ": " + e.Reason
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *VerifyError) Unwrap() error { return e.Err }

// Status returns the HTTP status of the answer: 405, 413, 400 for a malformed request, or 401.
func (e *VerifyError) Status() int {
	switch e.Rule {
	case RuleMethod:
		return http.StatusMethodNotAllowed
	case RuleSize:
		return http.StatusRequestEntityTooLarge
	case RuleBody, RuleParameters:
		return http.StatusBadRequest
	default:
		return http.StatusUnauthorized
	}
}
