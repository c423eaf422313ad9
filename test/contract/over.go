package contract

import (
	"testing"

	"github.com/hangar-platform/hangar/client"
)

// Over is a harness whose services are a client with a credential.
func Over(tb testing.TB, address, credential string, h Harness, options ...client.Option) Harness {
	tb.Helper()
	c := client.New(address, credential, options...)
	tb.Cleanup(c.Close)
	h.Orgs, h.Tokens, h.Apps, h.Machines, h.Platform, h.Secrets, h.SecretKeys, h.Registries, h.Identity, h.SigningKeys, h.Peers, h.Volumes, h.Addresses, h.Certificates, h.Users, h.SignIns = c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c
	h.As = func(tb testing.TB, credential string) Harness {
		tb.Helper()
		return Over(tb, address, credential, h, options...)
	}
	return h
}

// Services runs the contract of every service but that of peers, which needs a network.
func Services(t *testing.T, h Harness) {
	t.Helper()
	t.Run("orgs", func(t *testing.T) { OrgService(t, h) })
	t.Run("tokens", func(t *testing.T) { TokenService(t, h) })
	t.Run("users", func(t *testing.T) { UserService(t, h) })
	t.Run("apps", func(t *testing.T) { AppService(t, h) })
	t.Run("machines", func(t *testing.T) { MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { PlatformService(t, h) })
	t.Run("secrets", func(t *testing.T) { SecretService(t, h) })
	t.Run("secret keys", func(t *testing.T) { SecretKeyService(t, h) })
	t.Run("registries", func(t *testing.T) { RegistryService(t, h) })
	t.Run("identity", func(t *testing.T) { IdentityService(t, h) })
	t.Run("volumes", func(t *testing.T) { VolumeService(t, h) })
	t.Run("addresses", func(t *testing.T) { AddressService(t, h) })
	t.Run("certificates", func(t *testing.T) { CertificateService(t, h) })
}
