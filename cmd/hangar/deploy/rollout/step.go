package rollout

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/plan"
	"github.com/hangar-platform/hangar/internal/pause"
)

// step executes one step of the plan.
func (d *Deploy) step(ctx context.Context, s plan.Step) error {
	if s.Kind == plan.Release {
		return d.releaseCommand(ctx)
	}
	id := s.Machine
	if s.Slot != "" && s.Kind != plan.Create {
		d.mu.Lock()
		id = d.slots[s.Slot]
		d.mu.Unlock()
	}
	err := d.change(ctx, &id, s)
	if err != nil {
		d.report(Event{Group: s.Group, Machine: id, Text: cli.Message(err), Done: true, Failed: true})
		if id != "" {
			err = cli.AboutMachine(id, err)
		}
	}
	return err
}

// change executes one step for a Machine. It sets id if the step creates the Machine.
func (d *Deploy) change(ctx context.Context, id *hangar.MachineID, s plan.Step) error {
	report := func(text string, done bool) { d.report(Event{Group: s.Group, Machine: *id, Text: text, Done: done}) }
	at := d.leased(ctx, *id)
	switch s.Kind {
	case plan.Create:
		m, err := d.create(ctx, s)
		if err != nil {
			return err
		}
		*id = m.ID
		report("created", !s.Await)
		return d.awaitIf(ctx, s.Await, m.ID, m.InstanceID, s.Group)
	case plan.Update:
		m, err := d.update(at, s)
		if err != nil {
			return err
		}
		report("updated", !s.Await)
		if s.Start {
			if err := d.start(ctx, at, m.ID); err != nil {
				return err
			}
		}
		return d.awaitIf(ctx, s.Await, m.ID, m.InstanceID, s.Group)
	case plan.Start:
		if err := d.start(ctx, at, *id); err != nil {
			return err
		}
		return d.awaitIf(ctx, s.Await, *id, "", s.Group)
	case plan.Await:
		return d.awaitIf(ctx, true, *id, "", s.Group)
	case plan.Uncordon:
		err := d.p.UncordonMachine(at, d.ref(*id))
		if err == nil {
			report("serves requests", true)
		}
		return err
	case plan.Retire:
		err := d.retire(at, *id)
		if err == nil {
			report("cordoned", true)
		}
		return err
	case plan.Stop:
		if err := d.p.StopMachine(at, d.ref(*id), hangar.MachineStop{}); err != nil {
			return err
		}
		report("stopping", false)
		err := d.reach(ctx, *id, hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed)
		if err == nil {
			report("stopped", true)
		}
		return err
	case plan.Destroy:
		err := d.destroy(at, *id)
		if err == nil {
			report("destroyed", true)
		}
		return err
	default:
		return fmt.Errorf("unknown step %q", s.Kind)
	}
}

// retire marks a Machine that this release replaces, and takes it out of service.
func (d *Deploy) retire(leased context.Context, id hangar.MachineID) error {
	if err := d.p.SetMachineMetadata(leased, d.ref(id), hangar.MetadataPair{Key: keyRetired, Value: retired}); err != nil {
		return err
	}
	return d.p.CordonMachine(leased, d.ref(id))
}

// destroy destroys a Machine, with its lease. It is no error if the Machine does not exist.
func (d *Deploy) destroy(leased context.Context, id hangar.MachineID) error {
	err := d.p.DestroyMachine(leased, d.ref(id), hangar.MachineDestroy{Force: true})
	if err != nil && hangar.ReasonOf(err) != hangar.ReasonMachineNotFound {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leases, id)
	return nil
}

func (d *Deploy) awaitIf(ctx context.Context, wanted bool, id hangar.MachineID, instance hangar.InstanceID, group string) error {
	if !wanted {
		return nil
	}
	if err := d.await(ctx, id, instance, group); err != nil {
		return err
	}
	return d.machineChecks(ctx, group, id)
}

// reach waits until a Machine is in one of the states.
func (d *Deploy) reach(ctx context.Context, id hangar.MachineID, states ...hangar.MachineState) error {
	until := time.Now().Add(d.waiting)
	for {
		_, err := d.p.WaitMachine(ctx, d.ref(id), hangar.MachineWait{States: states})
		if hangar.ReasonOf(err) != hangar.ReasonWaitTimeout || time.Now().After(until) {
			return err
		}
	}
}

// start starts a Machine once its state is settled.
func (d *Deploy) start(ctx, leased context.Context, id hangar.MachineID) error {
	if err := d.reach(ctx, id, hangar.WaitSettled); err != nil {
		return err
	}
	_, err := d.p.StartMachine(leased, d.ref(id))
	return err
}

// metadata returns the metadata of a Machine of the release. It keeps metadata of other tools.
func (d *Deploy) metadata(before map[string]string, s plan.Step) map[string]string {
	made := maps.Clone(before)
	if made == nil {
		made = map[string]string{}
	}
	delete(made, keyRetired)
	maps.Copy(made, map[string]string{
		keyPlatform: platformManaged, keyRelease: string(d.Release.ID), keyVersion: strconv.Itoa(d.Release.Version), keyDigest: d.digests[s.Group],
		hangar.MetadataProcessGroup.Original: s.Group, hangar.MetadataProcessGroup.Neutral: s.Group,
	})
	if s.Replaces != "" {
		made[keyReplaces] = string(s.Replaces)
	}
	if s.Canary {
		made[keyTemporary] = "canary"
	}
	return made
}

// config returns the config of a Machine, without its volumes.
func (d *Deploy) config(g *appconfig.Group, before map[string]string, s plan.Step) hangar.MachineConfig {
	config := g.Config
	config.Metadata = d.metadata(before, s)
	config.Mounts = slices.Clone(config.Mounts)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pinned != "" {
		config.Image = d.pinned
	}
	return config
}

// standsFor adds the Machines that a standby waits for to its config.
func (d *Deploy) standsFor(ctx context.Context, config *hangar.MachineConfig, group string) error {
	machines, err := d.p.Machines(ctx, d.o.App, hangar.MachineFilter{Metadata: map[string]string{hangar.MetadataProcessGroup.Original: group}})
	if err != nil {
		return err
	}
	for _, m := range machines {
		if !m.Config.StandsBy() && m.State != hangar.MachineDestroying && m.Config.Metadata[keyTemporary] == "" {
			config.Standbys = append(config.Standbys, m.ID)
		}
	}
	config.Services = nil // the edge sends it no requests
	return nil
}

func (d *Deploy) create(ctx context.Context, s plan.Step) (*hangar.Machine, error) {
	g := d.groups[s.Group]
	config := d.config(&g, nil, s)
	if s.Standby {
		if err := d.standsFor(ctx, &config, s.Group); err != nil {
			return nil, err
		}
	}
	for i := range config.Mounts {
		volume, err := d.claim(ctx, &g.Mounts[i])
		if err != nil {
			return nil, err
		}
		config.Mounts[i].Volume = string(volume.ID)
	}
	m, err := d.p.CreateMachine(ctx, d.o.App, hangar.MachineCreate{
		Region: d.region, Config: config, SkipLaunch: s.Standby, SkipServiceRegistration: s.Cordoned, LeaseTTL: d.o.LeaseTTL, MinSecretsVersion: d.secrets,
	})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slots[s.Slot], d.leases[m.ID] = m.ID, m.Nonce
	return m, nil
}

func (d *Deploy) update(ctx context.Context, s plan.Step) (*hangar.Machine, error) {
	g, before := d.groups[s.Group], d.machines[s.Machine]
	config := d.config(&g, before.Config.Metadata, s)
	mounts, err := d.mountsOf(before, &g)
	if err != nil {
		return nil, err
	}
	config.Mounts = mounts
	if s.Standby {
		if err := d.standsFor(ctx, &config, s.Group); err != nil {
			return nil, err
		}
	}
	// A Machine can be updated only in a settled state.
	if !before.State.Settled() {
		if err := d.reach(ctx, s.Machine, hangar.WaitSettled); err != nil {
			return nil, err
		}
	}
	return d.p.UpdateMachine(ctx, d.ref(s.Machine), hangar.MachineUpdate{
		Config: config, CurrentVersion: before.InstanceID, SkipServiceRegistration: before.Cordoned, SkipLaunch: s.Standby, MinSecretsVersion: d.secrets,
	})
}

// claim returns a volume for a new Machine: one that is not attached, or a new one.
func (d *Deploy) claim(ctx context.Context, mount *appconfig.Mount) (*hangar.Volume, error) {
	d.mu.Lock()
	at := slices.IndexFunc(d.volumes, func(v *hangar.Volume) bool {
		return v.Name == mount.Source && v.AttachedMachine == "" && v.State.Usable() && (d.region == "" || v.Region == d.region)
	})
	if at >= 0 {
		found := d.volumes[at]
		d.volumes = slices.Delete(slices.Clone(d.volumes), at, at+1)
		d.mu.Unlock()
		return found, nil
	}
	d.mu.Unlock()
	in := hangar.VolumeCreate{Name: mount.Source, Region: d.region, SizeGB: int(mount.InitialSize), AutoBackup: mount.Snapshots}
	if mount.SnapshotRetention != nil {
		in.SnapshotRetention = *mount.SnapshotRetention
	}
	made, err := d.p.CreateVolume(ctx, d.o.App, in)
	if err == nil {
		d.report(Event{Text: fmt.Sprintf("volume %s (%s) is created", made.ID, made.Name)})
	}
	return made, err
}

// await waits until a version of a Machine is healthy: its program has run for Options.Settling, and its
// checks pass. An empty instance means any version.
func (d *Deploy) await(ctx context.Context, id hangar.MachineID, instance hangar.InstanceID, group string) error {
	timeout := hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "it is not healthy after %s", d.waiting)
	ctx, cancel := context.WithTimeoutCause(ctx, d.waiting, timeout)
	defer cancel()
	var since time.Time // when the Machine was first seen started
	said := ""
	for {
		m, err := d.p.Machine(ctx, d.ref(id))
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if hangar.CodeOf(err) != hangar.CodeUnavailable && !cli.Unreachable(err) {
				return err
			}
		} else {
			v := judge(m, instance)
			switch {
			case v.err != nil:
				return v.err
			case v.ended:
				d.pin(m)
				d.report(Event{Group: group, Machine: id, Text: v.text, Done: true})
				return nil
			case !v.started:
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			}
			if v.healthy && time.Since(since) >= d.o.Settling {
				d.pin(m)
				d.report(Event{Group: group, Machine: id, Text: "healthy", Done: true})
				return nil
			}
			if v.text != said {
				said = v.text
				d.report(Event{Group: group, Machine: id, Text: said})
			}
		}
		if pause.For(ctx, d.o.Poll) != nil {
			cause := context.Cause(ctx)
			if said != "" {
				return fmt.Errorf("%w: %s", cause, said)
			}
			return cause
		}
	}
}

// verdict is the health of a Machine at a moment.
type verdict struct {
	started bool
	healthy bool // all checks pass
	ended   bool // the program has ended as it should, or the Machine was stopped
	text    string
	err     error // the Machine will not become healthy
}

// judge returns the verdict about a version of a Machine.
func judge(m *hangar.Machine, instance hangar.InstanceID) verdict {
	if instance != "" && m.InstanceID < instance {
		return verdict{text: string(m.State)}
	}
	exit, failures, stopped := sinceLaunch(m)
	last := exit != nil && !exit.RequestedStop && exit.ExitCode != 0 && !exit.Restarting
	if last || failures > toleratedCrashes {
		text := fmt.Sprintf("its program has ended with code %d", exit.ExitCode)
		if exit.OOMKilled {
			text = "its program has used more memory than it has"
		}
		return verdict{err: cli.WithHint(fmt.Errorf("%s", text), fmt.Sprintf("see `hangar logs %s %s`", m.App, m.ID))}
	}
	switch m.State {
	case hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineDestroyed:
		return verdict{err: fmt.Errorf("it is %s%s", m.State, reason(m))}
	case hangar.MachineStopped, hangar.MachineSuspended:
		switch {
		case exit != nil && !exit.RequestedStop:
			return verdict{ended: true, text: "has run to its end"}
		case stopped:
			return verdict{ended: true, text: string(m.State)} // because it was idle, or by a user
		case reason(m) != "":
			return verdict{err: fmt.Errorf("it does not start%s", reason(m))}
		}
		return verdict{text: string(m.State)}
	case hangar.MachineStarted:
	default:
		return verdict{text: string(m.State)}
	}
	passing := 0
	for _, check := range m.Checks {
		if check.Status == hangar.CheckPassing {
			passing++
		}
	}
	text := "started"
	if len(m.Checks) > 0 {
		text = fmt.Sprintf("started, %d of %s", passing, cli.Plural(len(m.Checks), "check passes", "checks pass"))
	}
	return verdict{started: true, healthy: passing == len(m.Checks), text: text}
}

// toleratedCrashes is how often a program may fail and be restarted before the deploy fails: some fail until
// another program runs.
const toleratedCrashes = 1

// sinceLaunch returns what happened since the newest version was created: the last exit of the program, or
// nil, the number of failures, and whether the Machine was stopped.
func sinceLaunch(m *hangar.Machine) (exit *hangar.ExitEvent, failures int, stopped bool) {
	for _, e := range m.Events {
		switch e.Type {
		case hangar.EventLaunch:
			return exit, failures, stopped
		case hangar.EventUpdate:
			return exit, failures, stopped
		case hangar.EventStart: // events before a start by a user do not count
			if e.Source == hangar.SourceUser && e.Status == string(hangar.MachineStarting) {
				return exit, failures, stopped
			}
		case hangar.EventStop, hangar.EventSuspend:
			stopped = true
		case hangar.EventExit:
			if e.Request == nil || e.Request.ExitEvent == nil {
				continue
			}
			if exit == nil {
				exit = e.Request.ExitEvent
			}
			if !e.Request.ExitEvent.RequestedStop && e.Request.ExitEvent.ExitCode != 0 {
				failures++
			}
		default:
		}
	}
	return exit, failures, stopped
}

// reason returns the newest reason of a failure since the last launch, after a colon, or "".
func reason(m *hangar.Machine) string {
	for _, e := range m.Events {
		if e.Request != nil && e.Request.Error != "" {
			return ": " + e.Request.Error
		}
		if e.Type == hangar.EventLaunch {
			break
		}
	}
	return ""
}
