// Package rollout carries out a deploy: it reads the state of an App, gets the steps and their order
// from package plan, and executes them through the API.
//
// All state of a deploy is in the platform: a release, the metadata of Machines, and leases of Machines.
// The program may die at any time: its leases expire, and the next deploy finds its progress in the
// metadata.
package rollout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/plan"
)

// Metadata of Machines that a deploy has created. Keys that deployers of the public platform use have the
// same names here, so that both find the same Machines.
const (
	keyPlatform = "fly_platform_version"
	keyRelease  = "fly_release_id"
	keyVersion  = "fly_release_version"
	keyRetired  = "fly_bluegreen_deployment_tag"

	keyDigest    = "hangar_config_digest" // of appconfig.Group
	keyReplaces  = "hangar_replaces"      // plan.Machine.Replaces
	keyTemporary = "hangar_temporary"     // plan.Machine.Temporary: the purpose

	platformManaged = "v2"
	retired         = "safe_to_destroy"
	taskGroup       = "fly_app_release_command"
)

// Options are the settings of a deploy.
type Options struct {
	App   hangar.AppName
	File  *appconfig.File
	Image string // empty: that of the file
	// Strategy and MaxUnavailable default to those of the file.
	Strategy       appconfig.Strategy
	MaxUnavailable appconfig.Fraction
	WaitTimeout    time.Duration // 0: that of the file
	SkipRelease    bool          // do not run the release command
	Reason         string        // of the release
	Rollback       int           // the version that is deployed again; 0: File
	Scaling        *Scaling      // nil: a complete deploy
	// ReadFile reads files that the file names; nil: they cannot be read.
	ReadFile func(name string) ([]byte, error)

	TakeOver  bool          // continue although another deploy seems to be in progress
	WaitLease time.Duration // how long to wait for another deploy that holds leases
	// Settling is how long a program must run to count as healthy, with checks or without.
	Settling time.Duration
	Poll     time.Duration // between two checks of a Machine; 0: half a second
	LeaseTTL time.Duration // of the leases on Machines; 0: half a minute
	Report   func(Event)   // called from several goroutines; nil: events are not reported
}

// Scaling is a deploy of the current release with another number or size of Machines. Machines of a group with the
// same config are not changed, even if the tag of their image or the secrets of the App have changed meanwhile. Other
// Machines keep their image.
type Scaling struct {
	Version int             // of the release
	File    *appconfig.File // the unchanged file of the release
	Region  hangar.Region   // in which Machines are created and from which they are removed; empty: as in any deploy
}

const (
	defaultLeaseTTL = 30 * time.Second
	// abandonedAfter is how long a release in progress is not updated before its deploy counts as dead.
	abandonedAfter = time.Minute
	defaultPoll    = 500 * time.Millisecond
	parallel       = 8 // concurrent steps of a stage
)

// Event is a progress report of a deploy.
type Event struct {
	Time    time.Time        `json:"time"`
	Release int              `json:"release,omitempty"` // 0: there is none yet
	Stage   int              `json:"stage,omitempty"`   // from 1; 0: outside of the stages
	Stages  int              `json:"stages,omitempty"`
	Group   string           `json:"group,omitempty"`
	Machine hangar.MachineID `json:"machine,omitempty"`
	Text    string           `json:"text"`
	Done    bool             `json:"done,omitempty"` // the step about the Machine has ended
	Failed  bool             `json:"failed,omitempty"`
}

// Deploy is a planned deploy.
type Deploy struct {
	Plan    *plan.Plan
	Notes   []string
	Release *hangar.Release // nil until Run has created it
	Begun   bool            // Run has leased every Machine; before, it has changed none

	o        Options
	p        *client.Client
	file     *appconfig.File // without a primary region that this platform lacks; the release has the file of Options
	image    string
	same     map[string]bool // groups that scaling does not change
	strategy appconfig.Strategy
	secrets  int
	groups   map[string]appconfig.Group
	digests  map[string]string
	machines map[hangar.MachineID]*hangar.Machine
	before   []*hangar.Release // newest first
	region   hangar.Region
	waiting  time.Duration

	stage int // current one, from 1

	mu      sync.Mutex
	pinned  string // the image with the digest that the first Machine runs
	volumes []*hangar.Volume
	slots   map[string]hangar.MachineID
	leases  map[hangar.MachineID]string // nonces
	tried   map[string]bool             // groups whose machine checks have passed
}

// Prepare reads the state of the App and plans the deploy. It changes nothing. It returns CodeConflict with
// ReasonLeaseHeld while another deploy is in progress.
func Prepare(ctx context.Context, p *client.Client, o Options) (*Deploy, error) {
	d := &Deploy{
		o: o, p: p, groups: map[string]appconfig.Group{}, digests: map[string]string{}, machines: map[hangar.MachineID]*hangar.Machine{},
		slots: map[string]hangar.MachineID{}, leases: map[hangar.MachineID]string{}, tried: map[string]bool{},
	}
	d.o.Poll, d.o.LeaseTTL = cmp.Or(o.Poll, defaultPoll), cmp.Or(o.LeaseTTL, defaultLeaseTTL)
	if err := d.look(ctx); err != nil {
		return nil, err
	}
	if err := d.settings(); err != nil {
		return nil, err
	}
	if err := d.unoccupied(d.before, 0); err != nil && !o.TakeOver {
		return nil, err
	}
	target := plan.Target{Strategy: hangar.ReleaseStrategy(d.strategy), ReleaseCommand: !o.SkipRelease && o.File.Deploy != nil && o.File.Deploy.ReleaseCommand != ""}
	unavailable := d.o.MaxUnavailable
	for _, name := range o.File.Groups() {
		g := d.groups[name]
		target.Groups = append(target.Groups, plan.Group{
			Name: name, Count: g.Count, Standbys: g.Standbys, Volumes: len(g.Mounts) > 0, Unavailable: unavailable.Of,
		})
	}
	machines, err := d.observe()
	if err != nil {
		return nil, err
	}
	made, err := plan.Make(machines, target)
	if err != nil {
		return nil, err
	}
	d.Plan = made
	d.Notes = append(d.Notes, made.Notes...)
	return d, nil
}

// Managed counts the Machines of an App that a deploy has created, including deploys by clients of the public
// platform.
func Managed(ctx context.Context, p *client.Client, app hangar.AppName) (int, error) {
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{Metadata: map[string]string{keyPlatform: platformManaged}})
	return len(machines), err
}

// Active returns the Machines of an App that a deploy has created, except for standbys, temporary Machines and those
// that are being removed.
func Active(ctx context.Context, p *client.Client, app hangar.AppName) ([]*hangar.Machine, error) {
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{Metadata: map[string]string{keyPlatform: platformManaged}})
	return slices.DeleteFunc(machines, func(m *hangar.Machine) bool {
		metadata := m.Config.Metadata
		return m.State == hangar.MachineDestroying || m.State == hangar.MachineDestroyed || m.Config.StandsBy() ||
			metadata[keyTemporary] != "" || metadata[keyRetired] == retired || GroupOf(m) == taskGroup
	}), err
}

// settings reads the settings of the deploy and the groups from the options and the file.
func (d *Deploy) settings() error {
	f := d.file
	deploy := f.Deploy
	if deploy == nil {
		deploy = &appconfig.Deploy{}
	}
	d.strategy = cmp.Or(d.o.Strategy, deploy.Strategy, appconfig.Strategy(hangar.StrategyRolling))
	if d.o.MaxUnavailable == 0 {
		d.o.MaxUnavailable = appconfig.DefaultUnavailable
		if deploy.MaxUnavailable != nil {
			d.o.MaxUnavailable = *deploy.MaxUnavailable
		}
	}
	d.waiting = cmp.Or(d.o.WaitTimeout, deploy.WaitTimeout.Or(appconfig.DefaultWaitTimeout))
	d.image = d.o.Image
	if d.image == "" && f.Build != nil {
		d.image = f.Build.Image
	}
	if d.image == "" {
		err := cli.UsageErrorf("there is no image: use --image, image in [build], or a Dockerfile")
		if f.Build.Packs() {
			return cli.WithHint(err, "buildpacks are not offered: write a Dockerfile")
		}
		return err
	}
	for _, name := range f.Groups() {
		g, err := f.Group(name, appconfig.Sources{Image: d.image, ReadFile: d.o.ReadFile})
		if err != nil {
			return err
		}
		if d.digests[name], err = g.Digest(); err != nil {
			return err
		}
		d.groups[name] = g
	}
	if err := d.compare(); err != nil {
		return err
	}
	_, _, err := f.ReleaseCommand(d.image)
	return err
}

// compare finds the groups whose config does not change by scaling.
func (d *Deploy) compare() error {
	d.same = map[string]bool{}
	if d.o.Scaling == nil {
		return nil
	}
	for _, name := range d.o.File.Groups() {
		var digests [2]string
		for i, f := range []*appconfig.File{d.o.Scaling.File, d.o.File} {
			g, err := f.Group(name, appconfig.Sources{Image: d.image, ReadFile: d.o.ReadFile})
			if err != nil {
				return err
			}
			if digests[i], err = g.Digest(); err != nil {
				return err
			}
		}
		d.same[name] = digests[0] == digests[1]
	}
	return nil
}

// look reads the state of the App.
func (d *Deploy) look(ctx context.Context) error {
	secrets, err := d.p.Secrets(ctx, d.o.App, hangar.SecretQuery{})
	if err != nil {
		return err
	}
	d.secrets = secrets.Version
	if d.before, err = d.p.Releases(ctx, d.o.App, 0); err != nil {
		return err
	}
	machines, err := d.p.Machines(ctx, d.o.App, hangar.MachineFilter{Events: true})
	if err != nil {
		return err
	}
	d.adopt(machines)
	if d.volumes, err = d.p.Volumes(ctx, d.o.App); err != nil {
		return err
	}
	return d.chooseRegion(ctx)
}

// adopt keeps the Machines that deploys created, and notes how many others the App has.
func (d *Deploy) adopt(machines []*hangar.Machine) {
	others := 0
	for _, m := range machines {
		switch {
		case m.State == hangar.MachineDestroying || m.State == hangar.MachineDestroyed:
		case m.Config.Metadata[keyPlatform] != platformManaged:
			others++
		default:
			d.machines[m.ID] = m
		}
	}
	if others > 0 {
		d.Notes = append(d.Notes, "not created by a deploy, and not changed: "+cli.Plural(others, "Machine", "Machines"))
	}
}

// chooseRegion sets the region of new Machines. It sets the file too, because a primary region that the
// platform does not have is left out of it.
func (d *Deploy) chooseRegion(ctx context.Context) error {
	d.file = d.o.File
	wanted := hangar.Region("")
	if d.o.Scaling != nil {
		wanted = d.o.Scaling.Region
	}
	if d.o.File.PrimaryRegion == "" && wanted == "" {
		return nil
	}
	regions, err := d.p.Regions(ctx, hangar.Guest{})
	if err != nil {
		return err
	}
	there := func(region hangar.Region) bool {
		return slices.ContainsFunc(regions, func(r hangar.RegionRoom) bool { return r.Region == region })
	}
	if wanted != "" && !there(wanted) {
		return cli.UsageErrorf("this platform has no region %s", wanted)
	}
	switch {
	case d.o.File.PrimaryRegion == "":
	case there(d.o.File.PrimaryRegion):
		d.region = d.o.File.PrimaryRegion
	default:
		// With an unknown region, min_machines_running would keep no Machine running.
		file := *d.o.File
		file.PrimaryRegion = ""
		d.file = &file
		d.Notes = append(d.Notes, fmt.Sprintf("primary_region: this platform has no region %s: new Machines are in the platform's own", d.o.File.PrimaryRegion))
	}
	d.region = cmp.Or(wanted, d.region)
	return nil
}

// unoccupied returns an error if a release other than own is in progress.
func (d *Deploy) unoccupied(releases []*hangar.Release, own int) error {
	for _, r := range releases {
		if r.Version != own && r.Status.InProgress() && (own == 0 || r.Version < own) && d.p.ServerTime().Sub(r.UpdatedAt) < abandonedAfter {
			return cli.WithHint(hangar.Errorf(hangar.CodeConflict, hangar.ReasonLeaseHeld, "release v%d of %s is being deployed, last seen %s",
				r.Version, cmp.Or(r.User, "an unknown user"), r.UpdatedAt.Format(time.RFC3339)),
				"wait until it ends: hangar releases list "+string(d.o.App)+"; if its deploy has died, --take-over continues from its state")
		}
	}
	return nil
}

// resumed returns the oldest version of the releases that this deploy continues: the directly preceding
// ones that did not complete and have the same image. It is 0 if there is none.
func (d *Deploy) resumed() int {
	oldest := 0
	for _, r := range d.before {
		if r.Status == hangar.ReleaseComplete || r.Image != d.image {
			break
		}
		oldest = r.Version
	}
	return oldest
}

// observe describes the existing Machines for the plan.
func (d *Deploy) observe() ([]plan.Machine, error) {
	resumed := d.resumed()
	list := make([]plan.Machine, 0, len(d.machines))
	for _, id := range slices.Sorted(maps.Keys(d.machines)) {
		m := d.machines[id]
		metadata := m.Config.Metadata
		group := GroupOf(m)
		version, _ := strconv.Atoi(metadata[keyVersion]) // other tools may write any text there
		same := strings.Contains(d.image, "@sha256:") || resumed > 0 && version >= resumed
		made := plan.Machine{
			ID: id, Group: group, State: m.State, Cordoned: m.Cordoned, Standby: m.Config.StandsBy(),
			Current:   same && metadata[keyDigest] != "" && metadata[keyDigest] == d.digests[group] && m.SecretsVersion == d.secrets,
			Crashed:   crashed(m),
			Temporary: metadata[keyTemporary] != "" || group == taskGroup,
			Replaces:  hangar.MachineID(metadata[keyReplaces]),
			Retired:   metadata[keyRetired] == retired,
		}
		if scaling := d.o.Scaling; scaling != nil {
			ofRelease := version == scaling.Version
			made.Current = ofRelease && d.same[group]
			made.Spare = scaling.Region != "" && m.Region == scaling.Region
			if ofRelease && !made.Temporary {
				d.pin(m)
			}
		}
		if made.Current {
			d.pin(m)
		}
		if g, known := d.groups[group]; known && !made.Temporary {
			if _, err := d.mountsOf(m, &g); err != nil {
				return nil, err
			}
		}
		list = append(list, made)
	}
	return list, nil
}

// pin makes later Machines run the same image digest as m, even if the tag moves.
func (d *Deploy) pin(m *hangar.Machine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pinned == "" && m.ImageRef.Digest != "" && !strings.Contains(d.image, "@") {
		d.pinned = d.image + "@" + m.ImageRef.Digest
	}
}

// GroupOf returns the process group of a Machine.
func GroupOf(m *hangar.Machine) string {
	return cmp.Or(m.Config.Metadata[hangar.MetadataProcessGroup.Original], m.Config.Metadata[hangar.MetadataProcessGroup.Neutral])
}

// crashed reports whether the program of a Machine has ended unexpectedly.
func crashed(m *hangar.Machine) bool {
	if m.State != hangar.MachineStopped {
		return false
	}
	for _, e := range m.Events {
		switch e.Type {
		case hangar.EventExit:
			return e.Request != nil && e.Request.ExitEvent != nil && !e.Request.ExitEvent.RequestedStop && e.Request.ExitEvent.ExitCode != 0
		case hangar.EventStop, hangar.EventUpdate, hangar.EventLaunch:
			return false
		default:
		}
	}
	return false
}

// mountsOf returns the mounts of an existing Machine, with its volumes.
func (d *Deploy) mountsOf(m *hangar.Machine, g *appconfig.Group) ([]hangar.Mount, error) {
	mounts := slices.Clone(g.Config.Mounts)
	for i := range mounts {
		at := slices.IndexFunc(m.Config.Mounts, func(has hangar.Mount) bool { return has.Name == g.Mounts[i].Source })
		if at < 0 {
			return nil, cli.WithHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "Machine %s of group %s has no volume %s, which cannot be added to it",
				m.ID, g.Name, g.Mounts[i].Source), fmt.Sprintf("destroy it, and deploy: hangar machine destroy %s %s --force", m.App, m.ID))
		}
		mounts[i].Volume = m.Config.Mounts[at].Volume
	}
	if len(mounts) < len(m.Config.Mounts) {
		return nil, cli.WithHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "Machine %s of group %s has a volume that the file does not mention",
			m.ID, g.Name), fmt.Sprintf("add it to [mounts], or destroy the Machine, and deploy: hangar machine destroy %s %s --force", m.App, m.ID))
	}
	return mounts, nil
}
