package hangar

import (
	"testing"
	"time"
)

// TestAsMachine: what a Machine may do, whatever the API lets through.
func TestAsMachine(t *testing.T) {
	ref := MachineRef{App: "web", AppID: "a1", ID: "0123456789abcd"}
	ctx := AsMachine(t.Context(), "acme", "o1", ref)
	if self, ok := SelfFrom(ctx); !ok || self != ref {
		t.Errorf("the caller is %v, %t", self, ok)
	}
	p, err := PrincipalFrom(ctx)
	if err != nil || p.Admin || p.Subject != "machine 0123456789abcd" {
		t.Errorf("principal %+v, %v", p, err)
	}
	for target, want := range map[Target]Action{
		{"acme", "o1", "web", "a1", ref.ID}:            ActionRead | ActionWrite | ActionControl,
		{"acme", "o1", "web", "a1", ""}:                ActionRead,
		{"acme", "o1", "web", "a1", "1123456789abcd"}:  ActionRead,
		{"acme", "o1", "", "", ""}:                     0,
		{"acme", "o1", "other", "a1", ref.ID}:          0,
		{"other", "o1", "web", "a1", ref.ID}:           0,
		{"other", "o1", "web", "a1", "1123456789abcd"}: 0,
		{"acme", "o2", "web", "a1", ref.ID}:            0, // another organization that has got the slug
		{"acme", "o1", "web", "a2", ref.ID}:            0, // another App that has got the name
		{"acme", "o1", "web", "a2", ""}:                0,
		{"acme", "", "web", "", ref.ID}:                0,
	} {
		for bit := Action(1); bit <= ActionAll; bit <<= 1 {
			if got := p.May(bit, target); got != (want&bit != 0) {
				t.Errorf("%s of %+v: %t", bit, target, got)
			}
		}
	}
	lease := &Lease{Nonce: "n", ExpiresAt: time.Unix(100, 0)}
	now := time.Unix(50, 0)
	if lease.Admits(ctx, now) || !lease.Admits(WithLeaseNonce(ctx, "n"), now) || !lease.Admits(ctx, time.Unix(200, 0)) {
		t.Error("a lease binds a Machine as it binds a user")
	}
	if !lease.Admits(WithEventSource(ctx, SourceAgent), now) {
		t.Error("a lease binds the platform")
	}
}
