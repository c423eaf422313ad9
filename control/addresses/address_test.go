package addresses_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/state"
)

// TestParse: a record under the wrong key is no address.
func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		key, kind, ip, app string
		good               bool
	}{
		"own":            {"/addresses/a1/127.7.7.1", "v4", "127.7.7.1", "a1", true},
		"shared":         {"/addresses/a1/shared", "shared_v4", "127.0.0.1", "a1", true},
		"another App's":  {"/addresses/a1/127.7.7.1", "v4", "127.7.7.1", "a2", false},
		"another one":    {"/addresses/a1/127.7.7.1", "v4", "127.7.7.2", "a1", false},
		"unknown kind":   {"/addresses/a1/127.7.7.1", "v5", "127.7.7.1", "a1", false},
		"no address":     {"/addresses/a1/127.7.7.1", "v4", "", "a1", false},
		"shared as own":  {"/addresses/a1/127.0.0.1", "shared_v4", "127.0.0.1", "a1", false},
		"own as the one": {"/addresses/a1/shared", "v4", "127.7.7.1", "a1", false},
	} {
		ip, _ := netip.ParseAddr(test.ip) // or the zero one
		value, err := json.Marshal(struct {
			hangar.Address
			AppID string `json:"app_id"`
		}{hangar.Address{Kind: hangar.AddressKind(test.kind), IP: ip}, test.app})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := addresses.Parse(state.Item{Key: test.key, Value: value}); (err == nil) != test.good {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
