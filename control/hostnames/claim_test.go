package hostnames

import (
	"fmt"
	"strings"
	"testing"
)

// TestClaimTransitions walks every state of a claim and every event.
func TestClaimTransitions(t *testing.T) {
	states := []claimState{claimNone, claimPending, claimLeading, claimProven, claimReleased}
	events := []claimEvent{claimMade, claimStray, claimLeads, claimIssued, claimProof, claimRemoved, claimDue}
	const want = `
          made     stray    leads    issued   proof    removed  due
-         pending  -        -        -        -        -        -
pending   pending  pending  leading  pending  proven   -        -
leading   leading  pending  leading  proven   proven   -        -
proven    proven   proven   proven   proven   proven   released proven
released  pending  released released released released released -
`
	named := func(s claimState) string {
		if s == claimNone {
			return "-"
		}
		return string(s)
	}
	var got strings.Builder
	fmt.Fprintf(&got, "\n%-10s", "")
	for _, e := range events {
		fmt.Fprintf(&got, "%-9s", e)
	}
	for _, s := range states {
		fmt.Fprintf(&got, "\n%-10s", named(s))
		for _, e := range events {
			next := s.after(e)
			fmt.Fprintf(&got, "%-9s", named(next))
			if next.served() && !s.served() && e != claimProof && (e != claimIssued || s != claimLeading) {
				t.Errorf("%s becomes served by %s", named(s), e)
			}
			if next.ordered() && !s.ordered() && e != claimProof && e != claimLeads {
				t.Errorf("a certificate of what is %s is ordered after %s", named(s), e)
			}
		}
	}
	tidy := func(text string) string {
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = strings.Join(strings.Fields(lines[i]), " ")
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	if tidy(got.String()) != tidy(want) {
		t.Errorf("the table is%s", got.String())
	}
	for from, next := range claimTransitions() {
		for e, to := range next {
			if from == to {
				t.Errorf("%s stays what it is by %s; leave it out", named(from), e)
			}
		}
	}
}
