// Package contract holds the suites that every implementation of the service
// interfaces passes, whether it is in memory, behind the network or the real thing.
//
// A suite asks only for what the comments of package hangar promise. It waits by WaitMachine and
// WatchMachine and never by time, so that it runs as fast as the implementation and is reliable on
// a slow one. Every test makes its own App and destroys it.
//
// The tests of a suite run one after the other; a test may use several goroutines.
//
// A suite is not a test of what a host does inside a Machine; package drivertest is.
package contract

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// Harness is an implementation under test and what the suites need to know of it.
type Harness struct {
	Orgs         hangar.OrgService
	Tokens       hangar.TokenService
	Users        hangar.UserService
	SignIns      hangar.SignInService
	Apps         hangar.AppService
	Machines     hangar.MachineService
	Platform     hangar.PlatformService
	Secrets      hangar.SecretService
	SecretKeys   hangar.SecretKeyService
	Registries   hangar.RegistryService
	Identity     hangar.IdentityService
	SigningKeys  hangar.SigningKeyService
	Peers        hangar.PeerService
	Volumes      hangar.VolumeService
	Certificates hangar.CertificateService
	Addresses    hangar.AddressService
	// Context returns a context of a caller who may do everything, bounded by the
	// test.
	Context func(tb testing.TB) context.Context
	// As returns the same implementation as a caller with another credential meets it.
	As func(tb testing.TB, credential string) Harness
	// Image runs until it is asked to end.
	Image string
	// Exit is a command that ends with a code.
	Exit func(code int) []string
	// Sleep is a command that runs for longer than any test.
	Sleep []string
	// Suspend says that Machines can be suspended.
	Suspend bool
	// ACME says that certificates can be requested.
	ACME bool
	// Echo is a command that sends back what arrives at EchoPort, which is 0 where
	// Machines have no network.
	Echo     []string
	EchoPort int
}

// patience bounds everything that a suite waits for.
const patience = time.Minute

// newApp makes an App that goes with the test.
func (h Harness) newApp(t *testing.T) hangar.AppName {
	t.Helper()
	name := uniqueName()
	if _, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal}); err != nil {
		t.Fatalf("create app: %v", err)
	}
	t.Cleanup(func() { h.dropApp(t, name) })
	return name
}

func (h Harness) dropApp(t *testing.T, name hangar.AppName) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context(t)), patience)
	defer cancel()
	if err := h.Apps.DestroyApp(ctx, name, true); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("destroy app: %v", err)
	}
}

func uniqueName() hangar.AppName {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hangar.AppName("contract-" + hex.EncodeToString(b[:]))
}

// config is a Machine that ends only when it is asked, and then stays so.
func (h Harness) config() hangar.MachineConfig {
	return hangar.MachineConfig{Image: h.Image, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}}
}

// started makes a Machine and waits until it is started.
func (h Harness) started(t *testing.T, app hangar.AppName) *hangar.Machine {
	t.Helper()
	m := h.create(t, app, hangar.MachineCreate{Config: h.config()})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	return m
}

func (h Harness) create(t *testing.T, app hangar.AppName, in hangar.MachineCreate) *hangar.Machine {
	t.Helper()
	m, err := h.Machines.CreateMachine(h.Context(t), app, in)
	if err != nil {
		t.Fatalf("create machine: %v", err)
	}
	return m
}

func (h Harness) wait(t *testing.T, ref hangar.MachineRef, states ...hangar.MachineState) hangar.MachineReached {
	t.Helper()
	r, err := h.Machines.WaitMachine(h.Context(t), ref, hangar.MachineWait{States: states, Timeout: patience})
	if err != nil {
		t.Fatalf("wait for %v: %v", states, err)
	}
	return r
}

func (h Harness) get(t *testing.T, ref hangar.MachineRef) *hangar.Machine {
	t.Helper()
	m, err := h.Machines.Machine(h.Context(t), ref)
	if err != nil {
		t.Fatalf("get machine: %v", err)
	}
	return m
}

func (h Harness) stopped(t *testing.T, app hangar.AppName) *hangar.Machine {
	t.Helper()
	m := h.create(t, app, hangar.MachineCreate{Config: h.config(), SkipLaunch: true})
	h.wait(t, m.Ref(), hangar.MachineStopped)
	return m
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wantError checks code and, unless it is "", reason.
func wantError(t *testing.T, what string, err error, code hangar.Code, reason string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error, want %s %s", what, code, reason)
	case hangar.CodeOf(err) != code, reason != "" && hangar.ReasonOf(err) != reason:
		t.Errorf("%s: got %s %q (%v), want %s %q", what, hangar.CodeOf(err), hangar.ReasonOf(err), err, code, reason)
	default:
		var e *hangar.Error
		if errors.As(err, &e) && e.Message == "" {
			t.Errorf("%s: the error has no message for the user", what)
		}
	}
}
