package fake

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	defaultEvents = 20
	maxEvents     = 50
)

// CreateMachine implements hangar.MachineService.
func (s *Service) CreateMachine(ctx context.Context, app hangar.AppName, in hangar.MachineCreate) (*hangar.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.appFor(ctx, hangar.ActionCreate, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	config := in.Config
	if err := checkConfig(&config); err != nil {
		return nil, err
	}
	if err := hangar.CheckLeaseTTL(in.LeaseTTL); err != nil {
		return nil, err
	}
	if in.Region != "" && in.Region != s.region {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid region: %q is not one of [%s]", in.Region, s.region)
	}
	for _, m := range s.machines {
		if m.App == app && m.Name == in.Name && m.State != hangar.MachineDestroyed {
			return nil, hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken,
				"already_exists: unique machine name violation, machine ID %s already exists with name %q", m.ID, m.Name)
		}
	}
	version, err := s.secretsFor(app, in.SkipSecrets, in.MinSecretsVersion)
	if err != nil {
		return nil, err
	}
	s.numbers++
	now := s.now().UTC().Truncate(time.Second)
	m := &machine{Machine: hangar.Machine{
		ID: hangar.MachineID(fmt.Sprintf("%014x", 0xd8912340000000+s.numbers)), Name: in.Name, App: app, AppID: a.ID, State: hangar.MachineCreated,
		Region: s.region, Host: hostID, InstanceID: hangar.NewInstanceID(s.now()), PrivateIP: address(s.numbers),
		ImageRef: resolve(config.ImageName()), Config: config, CreatedAt: now, UpdatedAt: now, Cordoned: in.SkipServiceRegistration, HostStatus: "ok",
		SecretsVersion: version,
	}}
	if m.Name == "" {
		m.Name = fmt.Sprintf("quiet-hill-%04d", s.numbers)
	}
	if err := s.claim(a, m.ID, &m.Config); err != nil {
		return nil, err
	}
	config = m.Config
	s.machines[m.ID] = m
	m.versions = []hangar.MachineVersion{{Version: m.InstanceID, Config: config}}
	a.Status = hangar.AppDeployed
	s.images[m.ImageRef.Digest] = hangar.Image{Ref: m.ImageRef, SizeBytes: 1 << 20, LastUsed: now}
	s.record(m, hangar.EventLaunch, string(hangar.MachineCreated), hangar.SourceUser, nil)
	answer := m.snapshot()
	if in.LeaseTTL > 0 {
		if m.lease, err = m.lease.Acquire(ctx, m.ID, hangar.LeaseAcquire{TTL: in.LeaseTTL}, s.now()); err != nil {
			return nil, err
		}
		answer.Nonce = m.lease.Nonce
	}
	if in.SkipLaunch || config.StandsBy() {
		s.become(m, hangar.MachineStopped, hangar.EventLaunch, hangar.SourceAgent, nil)
	} else {
		s.boot(m, hangar.SourceAgent)
	}
	return answer, nil
}

// Machines implements hangar.MachineService.
func (s *Service) Machines(ctx context.Context, app hangar.AppName, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mayRead, err := s.reader(ctx, app)
	if err != nil {
		return nil, err
	}
	var out []*hangar.Machine
	for _, m := range s.machines {
		if m.App == app && filter.Matches(&m.Machine) && mayRead(m.ID) {
			c := m.snapshot()
			if !filter.Events {
				c.Events = nil
			}
			out = append(out, c)
		}
	}
	slices.SortFunc(out, byID)
	return out, nil
}

func byID(a, b *hangar.Machine) int { return strings.Compare(string(a.ID), string(b.ID)) }

// Machine implements hangar.MachineOps.
func (s *Service) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return m.snapshot(), nil
}

// UpdateMachine implements hangar.MachineOps.
func (s *Service) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _, err := s.order(ctx, ref, hangar.VerbUpdate)
	if err != nil {
		return nil, err
	}
	config := in.Config
	if err := checkConfig(&config); err != nil {
		return nil, err
	}
	if err := hangar.CheckLeaseTTL(in.LeaseTTL); err != nil {
		return nil, err
	}
	switch {
	case in.CurrentVersion != "" && in.CurrentVersion != m.InstanceID:
		return nil, hangar.Errorf(hangar.CodeConflict, hangar.ReasonStaleVersion, "current_version %s is stale, machine has %s", in.CurrentVersion, m.InstanceID)
	case in.Name != "" && in.Name != m.Name:
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid name: the name of a machine cannot change")
	case in.Region != "" && in.Region != m.Region:
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid region: the region of a machine cannot change")
	}
	if err := sameVolumes(m.Config.Mounts, config.Mounts); err != nil {
		return nil, err
	}
	version, err := s.secretsFor(m.App, in.SkipSecrets, in.MinSecretsVersion)
	if err != nil {
		return nil, err
	}
	if in.LeaseTTL > 0 {
		if m.lease, err = m.lease.Acquire(ctx, m.ID, hangar.LeaseAcquire{TTL: in.LeaseTTL}, s.now()); err != nil {
			return nil, err
		}
	}
	for _, mount := range config.Mounts {
		config.DescribeMount(&s.volumes.byID[hangar.VolumeID(mount.Volume)].Volume)
	}
	m.SecretsVersion = version
	launch := m.State == hangar.MachineStarted && !in.SkipLaunch && !config.StandsBy()
	s.become(m, hangar.MachineReplacing, hangar.EventUpdate, hangar.SourceUser, nil)
	m.InstanceID, m.Config, m.ImageRef = hangar.NewInstanceID(s.now()), config, resolve(config.ImageName())
	m.tagged = hangar.MetadataTimes{All: s.now().UnixMilli()}
	m.Cordoned = m.Cordoned || in.SkipServiceRegistration
	m.versions = slices.Insert(m.versions, 0, hangar.MachineVersion{Version: m.InstanceID, Config: config})
	s.record(m, hangar.EventLaunch, string(hangar.MachineCreated), hangar.SourceUser, nil)
	answer := m.snapshot()
	if in.LeaseTTL > 0 {
		answer.Nonce = m.lease.Nonce
	}
	if launch {
		s.boot(m, hangar.SourceAgent)
	} else {
		s.become(m, hangar.MachineStopped, hangar.EventStop, hangar.SourceAgent, nil)
	}
	return answer, nil
}

// StartMachine implements hangar.MachineOps.
func (s *Service) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, answer, err := s.order(ctx, ref, hangar.VerbStart)
	if err != nil {
		return hangar.StartResult{}, err
	}
	result := hangar.StartResult{PreviousState: m.State}
	if answer == hangar.Accept {
		s.boot(m, hangar.SourceUser)
	}
	return result, nil
}

// StopMachine implements hangar.MachineOps.
func (s *Service) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, answer, err := s.order(ctx, ref, hangar.VerbStop)
	if err != nil || answer == hangar.Already {
		return err
	}
	if m.State == hangar.MachineSuspended {
		s.become(m, hangar.MachineStopped, hangar.EventStop, hangar.SourceUser, nil)
		return nil
	}
	sig := in.Signal
	if sig == 0 {
		sig = m.Config.StopSignal()
	}
	s.become(m, hangar.MachineStopping, hangar.EventStop, hangar.SourceUser, nil)
	s.exited(m, sig, true)
	s.become(m, hangar.MachineStopped, hangar.EventStop, hangar.SourceAgent, nil)
	return nil
}

// SuspendMachine implements hangar.MachineOps.
func (s *Service) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, answer, err := s.order(ctx, ref, hangar.VerbSuspend)
	if err != nil || answer == hangar.Already {
		return err
	}
	if err := m.Config.CanSuspend(); err != nil {
		return err
	}
	s.become(m, hangar.MachineSuspending, hangar.EventSuspend, hangar.SourceUser, nil)
	s.become(m, hangar.MachineSuspended, hangar.EventSuspend, hangar.SourceAgent, nil)
	return nil
}

// RestartMachine implements hangar.MachineOps.
func (s *Service) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, answer, err := s.order(ctx, ref, hangar.VerbRestart)
	if err != nil || answer == hangar.Already {
		return err
	}
	if m.State == hangar.MachineStarted {
		sig := in.Signal
		switch {
		case in.ForceStop:
			sig = sigKill
		case sig == 0:
			sig = m.Config.StopSignal()
		}
		s.become(m, hangar.MachineRestarting, hangar.EventRestart, hangar.SourceUser, nil)
		s.exited(m, sig, true)
	}
	s.boot(m, hangar.SourceUser)
	return nil
}

// SignalMachine implements hangar.MachineOps. SIGHUP, SIGINT, SIGKILL and SIGTERM
// end the main process; it ignores every other signal.
func (s *Service) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _, err := s.ask(ctx, ref, hangar.VerbExec)
	if err != nil {
		return err
	}
	if sig == sigHup || sig == sigInt || sig == sigKill || sig == sigTerm {
		s.ended(m, 128+int(sig), sig)
	}
	return nil
}

// DestroyMachine implements hangar.MachineOps.
func (s *Service) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, answer, err := s.order(ctx, ref, hangar.VerbDestroy)
	if err != nil || answer == hangar.Already {
		return err
	}
	if m.State.NeedsForce() && !in.Force {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "unable to destroy machine, not currently stopped")
	}
	s.destroy(m, hangar.SourceUser)
	return nil
}

// WaitMachine implements hangar.MachineOps.
func (s *Service) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	if err := in.Validate(); err != nil {
		return hangar.MachineReached{}, err
	}
	timeout := in.Timeout
	if timeout == 0 {
		timeout = hangar.DefaultWaitTimeout
	}
	if len(in.States) == 0 {
		in.States = []hangar.MachineState{hangar.MachineStarted}
	}
	passed := time.NewTimer(timeout)
	defer passed.Stop()
	for {
		s.mu.Lock()
		m, err := s.find(ctx, ref)
		if err != nil {
			s.mu.Unlock()
			return hangar.MachineReached{}, err
		}
		reached, err := m.reached(in)
		changed, state := s.changed, m.State
		s.mu.Unlock()
		if err != nil || reached.State != "" {
			return reached, err
		}
		select {
		case <-ctx.Done():
			return hangar.MachineReached{}, ctx.Err()
		case <-passed.C:
			return hangar.MachineReached{}, hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout,
				"machine failed to reach desired state, %s, currently %s", in.States[0], state)
		case <-changed:
		}
	}
}

// reached looks for what is waited for in what has happened. The zero value: not yet.
func (m *machine) reached(in hangar.MachineWait) (hangar.MachineReached, error) {
	wanted := func(state hangar.MachineState) bool {
		return slices.Contains(in.States, state) || slices.Contains(in.States, hangar.WaitSettled) && state.Settled()
	}
	gone := m.Config.AutoDestroy && (m.State == hangar.MachineDestroying || m.State == hangar.MachineDestroyed)
	if in.FromEvent != "" || gone {
		for _, c := range m.changes {
			if c.Event != nil && c.Event.ID > in.FromEvent && c.Event.Type.Transits() && c.Machine.InstanceID >= in.Instance && wanted(c.Machine.State) {
				return hangar.MachineReached{EventID: c.Event.ID, State: c.Machine.State, Version: c.Machine.InstanceID}, nil
			}
		}
	}
	outOfReach := func(format string, args ...any) (hangar.MachineReached, error) {
		return hangar.MachineReached{}, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach, format, args...)
	}
	if in.Instance > m.InstanceID {
		return outOfReach("machine has no version %s, it is at %s", in.Instance, m.InstanceID)
	}
	if in.FromEvent == "" && wanted(m.State) {
		for _, e := range m.events {
			if e.Type.Transits() {
				return hangar.MachineReached{EventID: e.ID, State: m.State, Version: m.InstanceID}, nil
			}
		}
	}
	for _, w := range in.States {
		if m.State.CanReach(w) || w == hangar.WaitSettled && m.State != hangar.MachineDestroyed {
			return hangar.MachineReached{}, nil
		}
	}
	return outOfReach("machine is %s and can no longer become %s", m.State, in.States[0])
}

// MachineEvents implements hangar.MachineReader.
func (s *Service) MachineEvents(ctx context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = defaultEvents
	}
	if limit < 0 || limit > maxEvents {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid limit: %d is not from 1 to %d", limit, maxEvents)
	}
	return slices.Clone(m.events[:min(limit, len(m.events))]), nil
}

// MachineVersions implements hangar.MachineReader.
func (s *Service) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return slices.Clone(m.versions), nil
}

// MachineProcesses implements hangar.MachineReader.
func (s *Service) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, _, err := m.ask(hangar.VerbExec); err != nil {
		return nil, err
	}
	p := hangar.Process{PID: 1, Command: strings.Join(append([]string{"/init"}, m.Config.Init.Exec...), " "), Directory: "/", CPU: 0.124, RSS: 4 << 20}
	for _, service := range m.Config.Services {
		p.ListenSockets = append(p.ListenSockets, hangar.ListenSocket{Proto: "tcp", Address: fmt.Sprintf("[::]:%d", service.InternalPort)})
	}
	return []hangar.Process{p}, nil
}

// WatchMachine implements hangar.MachineReader.
func (s *Service) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		s.mu.Lock()
		m, err := s.find(ctx, ref)
		if err != nil {
			s.mu.Unlock()
			yield(hangar.MachineChange{}, err)
			return
		}
		now := m.Machine
		pending, seen, changed := []hangar.MachineChange{{Machine: &now}}, len(m.changes), s.changed
		s.doom(m)
		s.mu.Unlock()
		for {
			for _, c := range pending {
				if !yield(c, nil) || c.Machine.State == hangar.MachineDestroyed {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			s.mu.Lock()
			pending, seen, changed = slices.Clone(m.changes[seen:]), len(m.changes), s.changed
			s.mu.Unlock()
		}
	}
}

// find returns a Machine for a caller who wants to read it. The caller holds mu.
func (s *Service) find(ctx context.Context, ref hangar.MachineRef) (*machine, error) {
	return s.findFor(ctx, hangar.ActionRead, ref)
}

// ask finds a Machine and what it does when it is asked v.
func (s *Service) ask(ctx context.Context, ref hangar.MachineRef, v hangar.Verb) (*machine, hangar.Answer, error) {
	m, err := s.findFor(ctx, actionOf(v), ref)
	if err != nil {
		return nil, hangar.Refuse, err
	}
	return m.ask(v)
}

// actionOf is what a caller has to be allowed for a verb.
func actionOf(v hangar.Verb) hangar.Action {
	switch v {
	case hangar.VerbUpdate, hangar.VerbAnnotate, hangar.VerbLease:
		return hangar.ActionWrite
	case hangar.VerbDestroy:
		return hangar.ActionDelete
	default:
		return hangar.ActionControl
	}
}

// ask says what the Machine does when it is asked v.
func (m *machine) ask(v hangar.Verb) (*machine, hangar.Answer, error) {
	answer := m.State.Answers(v)
	if answer != hangar.Refuse {
		return m, answer, nil
	}
	text := fmt.Sprintf("unable to %s machine from current state: '%s'", v, m.State)
	if v == hangar.VerbExec {
		text = "machine not running"
	}
	return m, answer, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "%s", text)
}

// snapshot is the Machine with its newest events. The caller holds mu.
func (m *machine) snapshot() *hangar.Machine {
	c := m.Machine
	c.Events = slices.Clone(m.events[:min(defaultEvents, len(m.events))])
	c.Checks = m.checks()
	return &c
}

// checks pass while the Machine is started.
func (m *machine) checks() []hangar.MachineCheck {
	var list []hangar.MachineCheck
	for _, k := range m.Config.NamedChecks() {
		r := hangar.MachineCheck{Name: k.Name, Status: hangar.CheckPassing, Output: "Success", UpdatedAt: m.UpdatedAt}
		if m.State != hangar.MachineStarted {
			r.Status, r.Output = hangar.CheckWarning, "the machine hasn't started: it is "+string(m.State)
		}
		list = append(list, r)
	}
	return list
}

func checkConfig(c *hangar.MachineConfig) error {
	if err := c.Normalize(); err != nil {
		return err
	}
	return c.Validate()
}
