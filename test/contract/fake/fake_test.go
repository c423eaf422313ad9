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
		Orgs: s, Tokens: s, Apps: s, Machines: s, Platform: s, Secrets: s, SecretKeys: s, Registries: s, Identity: s, SigningKeys: s,
		Peers: s, Volumes: s, Addresses: s, Certificates: s,
		Image: "nginx:alpine", Suspend: true, ACME: true, Sleep: []string{"sleep", "3600"},
		Exit: func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Context: func(tb testing.TB) context.Context {
			tb.Helper()
			return hangar.WithPrincipal(tb.Context(), hangar.Principal{Subject: "test", Admin: true})
		},
	}
	h.As = func(_ testing.TB, credential string) contract.Harness {
		holder := h
		holder.Context = func(tb testing.TB) context.Context {
			tb.Helper()
			p, err := s.Login(nil).Authenticate(tb.Context(), credential)
			if err != nil {
				return tb.Context() // of nobody
			}
			return hangar.WithPrincipal(tb.Context(), p)
		}
		return holder
	}
	t.Run("orgs", func(t *testing.T) { contract.OrgService(t, h) })
	t.Run("tokens", func(t *testing.T) { contract.TokenService(t, h) })
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { contract.PlatformService(t, h) })
	t.Run("secrets", func(t *testing.T) { contract.SecretService(t, h) })
	t.Run("secret keys", func(t *testing.T) { contract.SecretKeyService(t, h) })
	t.Run("registries", func(t *testing.T) { contract.RegistryService(t, h) })
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
	t.Run("addresses", func(t *testing.T) { contract.AddressService(t, h) })
	t.Run("certificates", func(t *testing.T) { contract.CertificateService(t, h) })
	t.Run("identity", func(t *testing.T) { contract.IdentityService(t, h) })
	t.Run("volumes", func(t *testing.T) { contract.VolumeService(t, h) })
}
