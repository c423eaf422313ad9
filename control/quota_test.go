package control_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/ippool"
)

// quotas are the limits of organizations in these tests.
func (p *plane) limit(t *testing.T, org hangar.OrgSlug, limits hangar.Quotas) {
	t.Helper()
	if _, err := p.Orgs().SetOrgQuotas(admin(t), org, limits, nil); err != nil {
		t.Fatal(err)
	}
}

func (p *plane) used(t *testing.T, org hangar.OrgSlug, key hangar.QuotaKey) int64 {
	t.Helper()
	list, err := p.Orgs().OrgQuotas(admin(t), org)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if q.Key == key {
			return q.Used
		}
	}
	t.Fatalf("there is no quota %s", key)
	return 0
}

// orgWithApp makes an organization with an App of the same name.
func (p *plane) orgWithApp(t *testing.T, name string) {
	t.Helper()
	p.org(t, hangar.OrgSlug(name))
	if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: hangar.AppName(name), Org: hangar.OrgSlug(name)}); err != nil {
		t.Fatal(err)
	}
}

func sized(memoryMB, cpus int) hangar.MachineCreate {
	return hangar.MachineCreate{Config: hangar.MachineConfig{Image: "web", Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: cpus, MemoryMB: memoryMB}}}
}

// abuse is how an organization, with an App of its name, takes one more of something.
var abuses = map[hangar.QuotaKey]func(ctx context.Context, t *testing.T, p *plane, org string, n int) error{
	hangar.QuotaApps: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: hangar.AppName(org + strconv.Itoa(n)), Org: hangar.OrgSlug(org)})
		return err
	},
	hangar.QuotaNetworks: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: hangar.AppName(org + strconv.Itoa(n)), Org: hangar.OrgSlug(org), Network: "n" + strconv.Itoa(n)})
		return err
	},
	hangar.QuotaMachines: func(ctx context.Context, _ *testing.T, p *plane, org string, _ int) error {
		_, err := p.Machines().CreateMachine(ctx, hangar.AppName(org), sized(256, 1))
		return err
	},
	hangar.QuotaVolumes: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Volumes().CreateVolume(ctx, hangar.AppName(org), hangar.VolumeCreate{Name: "v" + strconv.Itoa(n), SizeGB: 1})
		return err
	},
	hangar.QuotaSnapshots: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		app := hangar.AppName(org)
		v, err := p.Volumes().CreateVolume(ctx, app, hangar.VolumeCreate{Name: "s" + strconv.Itoa(n), SizeGB: 1})
		if err != nil {
			return err
		}
		_, err = p.Volumes().CreateSnapshot(ctx, v.Ref())
		return err
	},
	hangar.QuotaAddressesV4:      allocates(hangar.AddressV4),
	hangar.QuotaAddressesV6:      allocates(hangar.AddressV6),
	hangar.QuotaAddressesPrivate: allocates(hangar.AddressPrivateV6),
	hangar.QuotaHostnames: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Certificates().RequestCertificate(ctx, hangar.AppName(org), hangar.Hostname(fmt.Sprintf("h%d.%s.org", n, org)))
		return err
	},
	hangar.QuotaTokens: func(ctx context.Context, _ *testing.T, p *plane, org string, _ int) error {
		_, err := p.Tokens().CreateToken(ctx, hangar.TokenCreate{Org: hangar.OrgSlug(org), Kind: hangar.TokenOrg})
		return err
	},
	hangar.QuotaMembers: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Users().InviteUser(ctx, hangar.UserInvite{Email: fmt.Sprintf("u%d@%s.org", n, org), Org: hangar.OrgSlug(org)})
		return err
	},
	hangar.QuotaPeers: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		seed := byte(n + 1)
		if org == "other" {
			seed += 100
		}
		_, err := p.Peers().CreatePeer(ctx, hangar.OrgSlug(org), hangar.PeerCreate{PublicKey: testKey(seed)})
		return err
	},
	hangar.QuotaSecrets: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		_, err := p.Secrets().SetSecrets(ctx, hangar.AppName(org), map[string]hangar.Sensitive{"S" + strconv.Itoa(n): hangar.NewSensitive("x")})
		return err
	},
	hangar.QuotaExtensions: func(ctx context.Context, _ *testing.T, p *plane, org string, n int) error {
		settings := hangar.ProviderSettings{BaseURL: "https://logs.example.com"}
		_, err := p.Providers().CreateProvider(ctx, hangar.ProviderCreate{Name: "logs", ProviderSettings: settings})
		if err != nil && hangar.ReasonOf(err) != hangar.ReasonNameTaken {
			return err
		}
		ctx = hangar.WithPrincipal(ctx, hangar.Principal{Subject: "admin", Admin: true, User: hangar.UserAdmin})
		_, err = p.Extensions().CreateExtension(ctx, hangar.AppName(org), hangar.ExtensionCreate{Provider: "logs", Name: org + "-" + strconv.Itoa(n)})
		return err
	},
}

func allocates(kind hangar.AddressKind) func(ctx context.Context, t *testing.T, p *plane, org string, n int) error {
	return func(ctx context.Context, _ *testing.T, p *plane, org string, _ int) error {
		_, err := p.Addresses().AllocateAddress(ctx, hangar.AppName(org), hangar.AddressCreate{Kind: kind})
		return err
	}
}

// sums are the quotas that count what others of these count one by one.
var sums = map[hangar.QuotaKey]hangar.QuotaKey{
	hangar.QuotaMemory: hangar.QuotaMachines, hangar.QuotaCPUs: hangar.QuotaMachines,
	hangar.QuotaVolumeGB: hangar.QuotaVolumes, hangar.QuotaSecretBytes: hangar.QuotaSecrets,
}

// measured are the quotas whose use is not counted but measured, and what tests them.
var measured = map[hangar.QuotaKey]string{hangar.QuotaImageMB: "TestImageQuota"}

// TestEachQuotaHoldsOneOrganizationBack: an organization that takes all it can of anything, with
// many requests at once, gets what its quota says, and another one its share.
func TestEachQuotaHoldsOneOrganizationBack(t *testing.T) {
	units := map[hangar.QuotaKey]int64{hangar.QuotaMemory: 256, hangar.QuotaSecretBytes: 3} // "S" and a digit, and the value
	for _, key := range hangar.QuotaKeys() {
		if measured[key] != "" {
			continue
		}
		t.Run(string(key), func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			p.certificates = &fakeCertificates{states: map[hangar.Hostname]hangar.CertificateState{}}
			p.restart(t)
			p.orgWithApp(t, "greedy")
			p.orgWithApp(t, "other")
			take := abuses[key]
			if one, ok := sums[key]; ok {
				take = abuses[one]
			}
			unit := max(units[key], 1)
			before := p.used(t, "greedy", key)
			limit := before + 3*unit
			p.limit(t, "greedy", hangar.Quotas{key: limit})
			var made, refused atomic.Int64
			var all sync.WaitGroup
			for n := range 9 {
				all.Go(func() {
					switch err := take(admin(t), t, p, "greedy", n); {
					case err == nil:
						made.Add(1)
					case hangar.ReasonOf(err) == hangar.ReasonQuota && hangar.CodeOf(err) == hangar.CodeExhausted:
						refused.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			all.Wait()
			if made.Load() != 3 || refused.Load() != 6 || p.used(t, "greedy", key) != limit {
				t.Errorf("%d made, %d refused, %d of %d used", made.Load(), refused.Load(), p.used(t, "greedy", key), limit)
			}
			if err := take(admin(t), t, p, "other", 1); err != nil {
				t.Errorf("another organization: %v", err)
			}
			// Everything goes with the App, but what an organization keeps.
			if err := p.Apps().DestroyApp(admin(t), "greedy", true); err != nil {
				t.Fatal(err)
			}
			left := p.used(t, "greedy", key)
			switch key {
			case hangar.QuotaNetworks, hangar.QuotaTokens, hangar.QuotaMembers, hangar.QuotaPeers, hangar.QuotaVolumes, hangar.QuotaVolumeGB, hangar.QuotaSnapshots,
				hangar.QuotaExtensions: // until the provider has confirmed their end
				if left != limit {
					t.Errorf("without the app, %d of %d are used", left, limit)
				}
			case hangar.QuotaApps:
				if left != limit-1 {
					t.Errorf("without the app, %d of %d are used", left, limit)
				}
			default:
				if left != 0 {
					t.Errorf("without the app, %d are used", left)
				}
			}
		})
	}
}

// TestParallelCreations: of a hundred creations at once by one organization, at several
// daemons on one state, exactly as many succeed as its quota says.
func TestParallelCreations(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.orgWithApp(t, "greedy")
		p.limit(t, "greedy", hangar.Quotas{hangar.QuotaMachines: 17})
		second := *p
		second.restart(t)
		var made atomic.Int64
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				from := []*plane{p, &second}[n%2]
				_, err := from.Machines().CreateMachine(admin(t), "greedy", sized(256, 1))
				if err == nil {
					made.Add(1)
				} else if hangar.ReasonOf(err) != hangar.ReasonQuota {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if made.Load() != 17 || p.used(t, "greedy", hangar.QuotaMemory) != 17*256 {
			t.Errorf("%d were made of 17, %d MB are used", made.Load(), p.used(t, "greedy", hangar.QuotaMemory))
		}
	})
}

// TestPoolIsShared: no organization gets all addresses of a pool.
func TestPoolIsShared(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	var err error
	if p.pools.V4, err = ippool.Parse("127.9.0.0/24", ippool.IPv4); err != nil {
		t.Fatal(err)
	}
	p.quotas = ledger.Defaults{
		Org: hangar.DefaultQuotas(hangar.ServerSize{IPv4: int64(p.pools.V4.Size())}), Personal: hangar.PersonalQuotas(),
	}
	p.restart(t)
	share := int(p.pools.V4.Size()) / 4
	for _, org := range []string{"greedy", "other"} {
		p.org(t, hangar.OrgSlug(org))
		taken := 0
		for app := 0; ; app++ { // each has its own bound
			name := hangar.AppName(fmt.Sprintf("%s%d", org, app))
			if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Org: hangar.OrgSlug(org)}); err != nil {
				t.Fatal(err)
			}
			var err error
			for range hangar.MaxAddresses {
				if _, err = p.Addresses().AllocateAddress(admin(t), name, hangar.AddressCreate{Kind: hangar.AddressV4}); err != nil {
					break
				}
				taken++
			}
			if hangar.ReasonOf(err) == hangar.ReasonQuota {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if taken != share {
			t.Errorf("%s got %d addresses, not its share of %d", org, taken, share)
		}
	}
}

// TestCountsFollowMachines: a size counts from when it is asked for until it is given up.
func TestCountsFollowMachines(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaMemory: 1024})
	m, err := p.Machines().CreateMachine(admin(t), "acme", sized(512, 1))
	if err != nil {
		t.Fatal(err)
	}
	resize := func(mb int) error {
		_, err := p.Machines().UpdateMachine(admin(t), m.Ref(), hangar.MachineUpdate{Config: sized(mb, 1).Config})
		return err
	}
	if err := resize(2048); hangar.ReasonOf(err) != hangar.ReasonQuota || p.used(t, "acme", hangar.QuotaMemory) != 512 {
		t.Errorf("grow beyond the quota: %v, %d used", err, p.used(t, "acme", hangar.QuotaMemory))
	}
	for _, mb := range []int{1024, 256} {
		if err := resize(mb); err != nil || p.used(t, "acme", hangar.QuotaMemory) != int64(mb) {
			t.Errorf("resize to %d: %v, %d used", mb, err, p.used(t, "acme", hangar.QuotaMemory))
		}
	}
	if err := p.Machines().DestroyMachine(admin(t), m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
		t.Fatal(err)
	}
	if p.used(t, "acme", hangar.QuotaMachines) != 0 || p.used(t, "acme", hangar.QuotaMemory) != 0 {
		t.Errorf("a destroyed machine counts")
	}
}

// TestUpdatesUnderWayCount: while a host is slow to make an update, as with an image of a slow registry,
// another update of the same Machine does not free what the first one takes.
func TestUpdatesUnderWayCount(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after int // MB
	}{{"grows", 256, 768}, {"keeps its size", 768, 768}} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			p.orgWithApp(t, "acme")
			p.limit(t, "acme", hangar.Quotas{hangar.QuotaMemory: 1024})
			m, err := p.Machines().CreateMachine(admin(t), "acme", sized(test.before, 1))
			if err != nil {
				t.Fatal(err)
			}
			resize := func(mb int) error {
				_, err := p.Machines().UpdateMachine(admin(t), m.Ref(), hangar.MachineUpdate{Config: sized(mb, 1).Config})
				return err
			}
			p.hosts[0].onUpdate = func(in hangar.MachineUpdate) error {
				if in.Config.Guest.MemoryMB != test.after {
					return nil
				}
				if err := resize(512); err != nil {
					t.Error(err)
				}
				if _, err := p.Machines().CreateMachine(admin(t), "acme", sized(512, 1)); hangar.ReasonOf(err) != hangar.ReasonQuota {
					t.Errorf("another machine takes what the update takes: %v", err)
				}
				return nil
			}
			if err := resize(test.after); err != nil || p.used(t, "acme", hangar.QuotaMemory) != int64(test.after) {
				t.Errorf("%v, %d used", err, p.used(t, "acme", hangar.QuotaMemory))
			}
		})
	}
}

// TestUpdateWithoutAnAnswerCounts until the host cannot make it any more.
func TestUpdateWithoutAnAnswerCounts(t *testing.T) {
	for _, lost := range []error{errDown, context.Canceled, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "no such image")} {
		p := newPlane(t, state.NewMemory())
		p.orgWithApp(t, "acme")
		m, err := p.Machines().CreateMachine(admin(t), "acme", sized(256, 1))
		if err != nil {
			t.Fatal(err)
		}
		update := func() error {
			_, err := p.Machines().UpdateMachine(admin(t), m.Ref(), hangar.MachineUpdate{Config: sized(768, 1).Config})
			return err
		}
		p.hosts[0].onUpdate = func(hangar.MachineUpdate) error { return lost }
		if err := update(); !errors.Is(err, lost) {
			t.Errorf("got %v", err)
		}
		larger := int64(768)
		if hangar.CodeOf(lost) == hangar.CodeInvalid { // nothing was done
			larger = 256
		}
		for _, step := range []struct {
			wait time.Duration
			used int64
		}{{0, larger}, {time.Minute, larger}, {5 * time.Minute, 256}} {
			p.clock.advance(step.wait)
			p.restart(t)
			if used := p.used(t, "acme", hangar.QuotaMemory); used != step.used {
				t.Errorf("%v: after %s more, %d MB are used, want %d", lost, step.wait, used, step.used)
			}
		}
	}
}

// TestUpdatesOfOneMachineAreBounded: so many under way at once are refused.
func TestUpdatesOfOneMachineAreBounded(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	m, err := p.Machines().CreateMachine(admin(t), "acme", sized(256, 1))
	if err != nil {
		t.Fatal(err)
	}
	p.hosts[0].onUpdate = func(hangar.MachineUpdate) error { return errDown }
	update := func() error {
		_, err := p.Machines().UpdateMachine(admin(t), m.Ref(), hangar.MachineUpdate{Config: sized(256, 1).Config})
		return err
	}
	for range 100 {
		if err = update(); hangar.CodeOf(err) == hangar.CodeExhausted {
			break
		}
	}
	if hangar.CodeOf(err) != hangar.CodeExhausted {
		t.Errorf("got %v", err)
	}
	p.clock.advance(5 * time.Minute)
	if err := update(); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("later: %v", err)
	}
}

// TestQuotasAreForAdministrators: a member reads them, and an administrator changes them.
func TestQuotasAreForAdministrators(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	member := hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "m", Grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionAll}}})
	if list, err := p.Orgs().OrgQuotas(member, "acme"); err != nil || len(list) != len(hangar.QuotaKeys()) {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := p.Orgs().SetOrgQuotas(member, "acme", hangar.Quotas{hangar.QuotaApps: 1000}, nil); hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Errorf("a member changed quotas: %v", err)
	}
	for _, bad := range []hangar.Quotas{{"apples": 1}, {hangar.QuotaApps: -2}} {
		if _, err := p.Orgs().SetOrgQuotas(admin(t), "acme", bad, nil); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaApps: 0})
	if _, err := p.Apps().CreateApp(member, hangar.AppCreate{Name: "x", Org: "acme"}); hangar.ReasonOf(err) != hangar.ReasonQuota {
		t.Errorf("beyond: %v", err)
	}
	if _, err := p.Orgs().SetOrgQuotas(admin(t), "acme", nil, []hangar.QuotaKey{hangar.QuotaApps}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apps().CreateApp(member, hangar.AppCreate{Name: "x", Org: "acme"}); err != nil {
		t.Errorf("after the reset: %v", err)
	}
}

// TestEveryCreationHasAQuota finds the methods that make something, and asks for each which
// quota bounds it, or what else does.
func TestEveryCreationHasAQuota(t *testing.T) {
	bounds := map[string]string{
		"Apps.CreateApp": "apps", "Machines.CreateMachine": "machines", "Machines.UpdateMachine": "memory_mb",
		"Volumes.CreateVolume": "volumes", "Volumes.ExtendVolume": "volume_gb", "Addresses.AllocateAddress": "addresses_v4",
		"Tokens.CreateToken": "tokens", "Peers.CreatePeer": "peers", "Secrets.SetSecrets": "secrets",
		"SecretKeys.SetSecretKey": "secrets", "SecretKeys.GenerateSecretKey": "secrets",
		"Volumes.CreateSnapshot": "snapshots", "Certificates.RequestCertificate": "hostnames", "Certificates.UploadCertificate": "hostnames",

		"Users.InviteUser": "members", "Users.SetMember": "members", "Users.UpdateUser": "makes nothing", "Users.SetPassword": "one of a user",

		"Extensions.CreateExtension": "extensions", "Extensions.UpdateExtension": "makes nothing",
		"Providers.CreateProvider": "for administrators", "Providers.UpdateProvider": "for administrators",

		"Releases.CreateRelease": "so many of an App, and bytes of their definitions", "Releases.UpdateRelease": "so many bytes of a release",

		"Orgs.CreateOrg":                   "for administrators",
		"Orgs.SetOrgQuotas":                "for administrators",
		"Registries.SetRegistryCredential": "for administrators",
		"Volumes.UpdateVolume":             "makes nothing",
		"Machines.SetMachineMetadata":      "so many bytes of a Machine",
		"Machines.UpdateMachineMetadata":   "so many bytes of a Machine",
		"Machines.SetMachineMetadataValue": "so many bytes of a Machine",
		"Machines.AcquireLease":            "one of a Machine",
		"Identity.CreateIdentityToken":     "keeps nothing",
		"Volumes.UndeleteVolume":           "was counted all the time",
	}
	makes := regexp.MustCompile(`\.(Create|Generate|Allocate|Set|Update|Extend|Import|Request|Upload|Add|Acquire|Undelete|Fork|Restore|Put|Patch|Invite)[A-Z]`)
	p := newPlane(t, state.NewMemory())
	for _, m := range everyMethod(p.Control) {
		if makes.MatchString(m.name) && bounds[m.name] == "" {
			t.Errorf("%s makes something: say which quota bounds it, or what else does", m.name)
		}
	}
	for _, key := range hangar.QuotaKeys() {
		if _, sum := sums[key]; abuses[key] == nil && !sum && measured[key] == "" {
			t.Errorf("no test abuses %s", key)
		}
	}
}

// TestDestroyedVolumesMakeRoom: the quota of an organization that is full of destroyed volumes
// does not refuse new ones; the oldest destroyed ones go, and only as many as it takes.
func TestDestroyedVolumesMakeRoom(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "greedy")
	p.orgWithApp(t, "other")
	p.limit(t, "greedy", hangar.Quotas{hangar.QuotaVolumes: 4, hangar.QuotaVolumeGB: 10})
	create := func(org string, size int) (hangar.VolumeRef, error) {
		v, err := p.Volumes().CreateVolume(admin(t), hangar.AppName(org), hangar.VolumeCreate{Name: "data", SizeGB: size})
		if err != nil {
			return hangar.VolumeRef{}, err
		}
		return v.Ref(), nil
	}
	must := func(ref hangar.VolumeRef, err error) hangar.VolumeRef {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	kept := must(create("greedy", 1))
	theirs := must(create("other", 1))
	var destroyed []hangar.VolumeRef
	for range 3 {
		destroyed = append(destroyed, must(create("greedy", 3)))
	}
	for _, ref := range append([]hangar.VolumeRef{theirs}, destroyed...) { // the oldest is another organization's
		if _, err := p.Volumes().DestroyVolume(admin(t), ref); err != nil {
			t.Fatal(err)
		}
	}
	states := func() (list []hangar.VolumeState) {
		t.Helper()
		for _, ref := range append([]hangar.VolumeRef{theirs}, destroyed...) {
			v, err := p.Volumes().Volume(admin(t), ref)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, v.State)
		}
		return list
	}
	pending, gone := hangar.VolumePendingDestroy, hangar.VolumeDestroyed
	if _, err := create("greedy", 11); hangar.ReasonOf(err) != hangar.ReasonQuota {
		t.Errorf("more than the quota: %v", err)
	}
	if got, want := states(), []hangar.VolumeState{pending, pending, pending, pending}; !slices.Equal(got, want) {
		t.Errorf("after what could not fit anyway: %v, want %v", got, want)
	}
	must(create("greedy", 1)) // the number is full
	if got, want := states(), []hangar.VolumeState{pending, gone, pending, pending}; !slices.Equal(got, want) {
		t.Errorf("after a creation: %v, want %v", got, want)
	}
	if _, err := p.Volumes().ExtendVolume(admin(t), kept, 5); err != nil { // 12 GB of 10
		t.Errorf("extend: %v", err)
	}
	if got, want := states(), []hangar.VolumeState{pending, gone, gone, pending}; !slices.Equal(got, want) {
		t.Errorf("after an extension: %v, want %v", got, want)
	}
	if gb, n := p.used(t, "greedy", hangar.QuotaVolumeGB), p.used(t, "greedy", hangar.QuotaVolumes); gb != 9 || n != 3 {
		t.Errorf("%d GB of %d volumes are counted", gb, n)
	}
}

// TestDestroyedVolumeThatIsRead: the oldest destroyed volume, which cannot be removed because it
// is being read, keeps no younger one from making room.
func TestDestroyedVolumeThatIsRead(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaVolumes: 2})
	create := func() (*hangar.Volume, error) {
		return p.Volumes().CreateVolume(admin(t), "acme", hangar.VolumeCreate{Name: "data", SizeGB: 1})
	}
	for i := range 2 {
		v, err := create()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Volumes().DestroyVolume(admin(t), v.Ref()); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			p.hosts[0].volumes.read = v.ID
		}
	}
	if _, err := create(); err != nil {
		t.Error(err)
	}
	if _, err := create(); hangar.ReasonOf(err) != hangar.ReasonQuota {
		t.Errorf("with nothing to remove: %v", err)
	}
}

// TestClaimsOfHosts: what a host is about to do by itself is refused beyond a quota, and counts
// by its result.
func TestClaimsOfHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaVolumeGB: 4})
	v, err := p.Volumes().CreateVolume(admin(t), "acme", hangar.VolumeCreate{Name: "data", SizeGB: 2})
	if err != nil {
		t.Fatal(err)
	}
	row, err := p.hosts[0].VolumeRow(t.Context(), v.Ref())
	if err != nil {
		t.Fatal(err)
	}
	counts := func(want int64) {
		t.Helper()
		if got := p.used(t, "acme", hangar.QuotaVolumeGB); got != want {
			t.Errorf("%d GB are counted, want %d", got, want)
		}
	}
	claim := func(size int) error {
		wanted := *row
		wanted.Volume.SizeGB = size
		return p.rows.ClaimVolume(t.Context(), wanted)
	}
	if err := claim(5); hangar.ReasonOf(err) != hangar.ReasonQuota {
		t.Errorf("a claim beyond the quota: %v", err)
	}
	counts(2)
	if err := claim(4); err != nil {
		t.Fatal(err)
	}
	if err := p.rows.PublishVolume(t.Context(), *row); err != nil { // as it was before the claim
		t.Fatal(err)
	}
	counts(4)
	if err := claim(2); err != nil { // given up
		t.Fatal(err)
	}
	counts(2)
	if err := claim(4); err != nil {
		t.Fatal(err)
	}
	row.Seq++ // it was not extended
	if err := p.rows.PublishVolume(t.Context(), *row); err != nil {
		t.Fatal(err)
	}
	counts(2)
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaVolumeGB: 2})
	row.Seq, row.Volume.SizeGB = row.Seq+1, 3 // beyond the quota
	if err := p.rows.PublishVolume(t.Context(), *row); err != nil {
		t.Fatal(err)
	}
	counts(3)
	stranger := *row
	stranger.OrgID = "another"
	if err := p.rows.ClaimVolume(t.Context(), stranger); hangar.ReasonOf(err) != hangar.ReasonOrgNotFound {
		t.Errorf("a claim for an organization that lost its slug: %v", err)
	}
}

// TestHostnamesCountForWhoHasThem: a Hostname counts for the organization whose App has it, until
// it is removed, expires, or goes to another organization.
func TestHostnamesCountForWhoHasThem(t *testing.T) {
	h := newHostnames(t)
	counts := func(org hangar.OrgSlug, want int64) {
		t.Helper()
		if got := h.used(t, org, hangar.QuotaHostnames); got != want {
			t.Errorf("%s has %d hostnames, want %d", org, got, want)
		}
	}
	request := func(ctx context.Context, app hangar.AppName, name hangar.Hostname) {
		t.Helper()
		if _, err := h.Certificates().RequestCertificate(ctx, app, name); err != nil {
			t.Fatal(err)
		}
	}
	request(h.evil, "bad", "unproven.org")
	request(h.evil, "bad", "unproven.org")
	counts("evil", 1)
	request(admin(t), "web", "unproven.org") // vouched for
	counts("evil", 0)
	counts(hangar.OrgPersonal, 1)
	if _, err := h.Certificates().RemoveCertificate(admin(t), "web", "unproven.org", ""); err != nil {
		t.Fatal(err)
	}
	counts(hangar.OrgPersonal, 0)
	request(h.evil, "bad", "expires.org")
	counts("evil", 1)
	h.clock.advance(hangar.HostnameClaimLife + time.Second)
	if err := h.Hostnames.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts("evil", 0)
}

// TestImageQuota: what an organization may have of images is its own limit, or the default.
func TestImageQuota(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.quotas = ledger.Defaults{Org: hangar.Quotas{hangar.QuotaImageMB: 100}}
	p.restart(t)
	p.org(t, "greedy")
	p.org(t, "other")
	id := func(slug hangar.OrgSlug) hangar.OrgID {
		org, err := p.Orgs().Org(admin(t), slug)
		if err != nil {
			t.Fatal(err)
		}
		return org.ID
	}
	admit := func(slug hangar.OrgSlug, mb int64) error { return p.rows.AdmitImages(t.Context(), id(slug), mb<<20) }
	p.limit(t, "greedy", hangar.Quotas{hangar.QuotaImageMB: 10})
	if err := admit("greedy", 9); err != nil {
		t.Error(err)
	}
	wantError(t, admit("greedy", 10), hangar.CodeExhausted, hangar.ReasonQuota)
	if err := admit("other", 99); err != nil {
		t.Error(err)
	}
	wantError(t, admit("other", 100), hangar.CodeExhausted, hangar.ReasonQuota)
	wantError(t, p.rows.AdmitImages(t.Context(), "gone", 0), hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	p.hosts[0].usage = hangar.ImageUsage{Stored: 1 << 20, Uploads: 2 << 20, Unpacked: 4 << 20}
	if got := p.used(t, "greedy", hangar.QuotaImageMB); got != 7 {
		t.Errorf("%d MB are shown", got)
	}
}

// TestImagesWaitForTheQuotas: a pull before the quotas are known, as when the server starts, waits
// until they are.
func TestImagesWaitForTheQuotas(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.org(t, "greedy")
	org, err := p.Orgs().Org(admin(t), "greedy")
	if err != nil {
		t.Fatal(err)
	}
	limits := ledger.Defaults{Org: hangar.Quotas{hangar.QuotaImageMB: 100}}
	synctest.Test(t, func(t *testing.T) {
		rows := control.NewRows(p.store, quiet)
		admitted, refused := make(chan error, 1), make(chan error, 1)
		go func() { admitted <- rows.AdmitImages(t.Context(), org.ID, 99<<20) }()
		go func() { refused <- rows.AdmitImages(t.Context(), org.ID, 100<<20) }()
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if err := rows.AdmitImages(ctx, org.ID, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("to one who left: %v", err)
		}
		synctest.Wait()
		if len(admitted)+len(refused) > 0 {
			t.Error("answered before the quotas are known")
		}
		rows.SetQuotas(limits)
		if err := <-admitted; err != nil {
			t.Error(err)
		}
		wantError(t, <-refused, hangar.CodeExhausted, hangar.ReasonQuota)
	})
}
