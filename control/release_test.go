package control_test

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// TestAnAppTakesItsReleases along, and an organization its authority; others keep theirs.
func TestAnAppTakesItsReleases(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	for _, name := range []string{"acme", "other"} {
		p.orgWithApp(t, name)
		if _, err := p.Releases().CreateRelease(admin(t), hangar.AppName(name), hangar.ReleaseCreate{Image: "web"}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.SSH().IssueSSHCertificate(admin(t), hangar.OrgSlug(name), hangar.SSHCertificateCreate{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Apps().DestroyApp(admin(t), "acme", true); err != nil {
		t.Fatal(err)
	}
	if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{state.ReleasesPrefix, state.SSHPrefix} {
		if left := p.records(t, prefix); len(left) != 1 {
			t.Errorf("%s has %v, want what the other organization has", prefix, left)
		}
	}
	// An App of the same name begins again, and no release of the first one is its.
	p.orgWithApp(t, "acme")
	made, err := p.Releases().CreateRelease(admin(t), "acme", hangar.ReleaseCreate{})
	if err != nil || made.Version != 1 {
		t.Errorf("made %+v, %v", made, err)
	}
}

// TestResolveImage asks a host for whom it has to ask, and hosts in turn while they are away.
func TestResolveImage(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	found, err := p.Images().ResolveImage(admin(t), "web", "nginx")
	if err != nil || found.Ref.Repository != "nginx" || found.Size != 7 {
		t.Errorf("found %+v, %v", found, err)
	}
	_, err = p.Images().ResolveImage(admin(t), "web", "gone")
	if hangar.ReasonOf(err) != hangar.ReasonImageNotFound || !strings.Contains(err.Error(), string(hangar.OrgPersonal)) {
		t.Errorf("an image that there is not: %v", err)
	}
	for _, h := range p.hosts {
		h.setDown(true)
	}
	if _, err := p.Images().ResolveImage(admin(t), "web", "nginx"); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("without a host: %v", err)
	}
}
