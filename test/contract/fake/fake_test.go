package fake_test

import (
	"context"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	s := fake.New("loc")
	h := contract.Harness{
		Orgs: s, Tokens: s, Apps: s, Machines: s, Platform: s, Identity: s, SigningKeys: s, Volumes: s, Image: "nginx:alpine", Suspend: true, Sleep: []string{"sleep", "3600"},
		Exit: func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Context: func(tb testing.TB) context.Context {
			tb.Helper()
			return hangar.WithPrincipal(tb.Context(), hangar.Principal{Subject: "test", Admin: true})
		},
	}
	h.As = func(tb testing.TB, credential string) contract.Harness {
		tb.Helper()
		p, err := s.Login(nil).Authenticate(tb.Context(), credential)
		if err != nil {
			tb.Fatal(err)
		}
		holder := h
		holder.Context = func(tb testing.TB) context.Context {
			tb.Helper()
			return hangar.WithPrincipal(tb.Context(), p)
		}
		return holder
	}
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { contract.PlatformService(t, h) })
	t.Run("identity", func(t *testing.T) { contract.IdentityService(t, h) })
	t.Run("volumes", func(t *testing.T) { contract.VolumeService(t, h) })
}
