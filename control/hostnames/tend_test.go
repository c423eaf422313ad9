package hostnames

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
)

// silentDNS is a DNS whose servers of squat.net never answer.
type silentDNS struct{}

func (silentDNS) wait(ctx context.Context, host string) error {
	if !strings.HasSuffix(host, ".squat.net.") {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (d silentDNS) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	return nil, d.wait(ctx, host)
}

func (d silentDNS) LookupCNAME(ctx context.Context, host string) (string, error) {
	return host, d.wait(ctx, host)
}

func (d silentDNS) LookupTXT(ctx context.Context, host string) ([]string, error) {
	return []string{"answered"}, d.wait(ctx, host)
}

// TestSilentNamesHoldUpNoOtherOrganization: an organization whose names are never answered, and that
// has as many looked up as it may, delays no lookup of another.
func TestSilentNamesHoldUpNoOtherOrganization(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Resolver: silentDNS{}, Now: time.Now})
		for range lookupBurst {
			go h.lookUp(t.Context(), "evil", "www.squat.net")
		}
		for range 3 * lookupTimeout / time.Second {
			synctest.Wait() // all slots that it gets are taken
			asked := time.Now()
			observed, ok := h.lookUp(t.Context(), "me", "www.bank.com")
			if !ok || !slices.Equal(observed.txt, []string{"answered"}) {
				t.Fatalf("observed %+v, %t", observed, ok)
			}
			if waited := time.Since(asked); waited > 0 {
				t.Fatalf("another organization waited %v", waited)
			}
			time.Sleep(time.Second)
			go h.lookUp(t.Context(), "evil", hangar.Hostname("again.squat.net"))
		}
	})
}
