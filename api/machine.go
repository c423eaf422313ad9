package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

const maxEvents = 50

// machineWish is the body of create and update.
type machineWish struct {
	Name                    string            `json:"name"`
	Region                  hangar.Region     `json:"region"`
	Config                  rawConfig         `json:"config" schema:"required"`
	CurrentVersion          hangar.InstanceID `json:"current_version"`
	SkipLaunch              bool              `json:"skip_launch"`
	SkipServiceRegistration bool              `json:"skip_service_registration"`
	LeaseTTL                int               `json:"lease_ttl"` // seconds
	LSVD                    bool              `json:"lsvd"`
	SkipSecrets             bool              `json:"skip_secrets"`
	MinSecretsVersion       int               `json:"min_secrets_version"`
}

// rawConfig is a config as it was sent.
type rawConfig struct{ json.RawMessage }

// stopWish is the body of stop.
type stopWish struct {
	Signal  hangar.Signal `json:"signal"`
	Timeout stopTimeout   `json:"timeout"`
}

// signalWish is the body of signal.
type signalWish struct {
	Signal hangar.Signal `json:"signal" schema:"required"`
}

func decodeWish(r *http.Request) (machineWish, hangar.MachineConfig, error) {
	in, err := decode[machineWish](r)
	if err != nil {
		return in, hangar.MachineConfig{}, err
	}
	switch {
	case len(in.Config.RawMessage) == 0 || string(in.Config.RawMessage) == "null":
		err = invalid("config", "is required")
	case len(in.Name) > maxNameText:
		err = invalid("name", "has %d bytes, more than the %d that are allowed", len(in.Name), maxNameText)
	case len(in.Region) > maxNameText:
		err = invalid("region", "has %d bytes, more than the %d that are allowed", len(in.Region), maxNameText)
	case in.LeaseTTL < 0 || in.LeaseTTL > maxLeaseSeconds:
		err = invalid("lease_ttl", "a lease lasts from 1 to %d seconds", maxLeaseSeconds)
	case in.LSVD:
		err = unsupported("lsvd", "log-structured disks are not offered by this server")
	}
	if err != nil {
		return in, hangar.MachineConfig{}, err
	}
	config, err := hangar.ParseMachineConfig(in.Config.RawMessage)
	return in, config, err
}

func (s *server) createMachine(r *http.Request) (answer, error) {
	app, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	in, config, err := decodeWish(r)
	if err != nil {
		return answer{}, err
	}
	if in.CurrentVersion != "" {
		return answer{}, invalid("current_version", "is for updates; a new machine has none")
	}
	return machineAnswer(s.Machines.CreateMachine(r.Context(), app, hangar.MachineCreate{
		Name: in.Name, Region: in.Region, Config: config, SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration,
		LeaseTTL:    time.Duration(in.LeaseTTL) * time.Second,
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}))
}

func (s *server) updateMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	in, config, err := decodeWish(r)
	if err != nil {
		return answer{}, err
	}
	return machineAnswer(s.Machines.UpdateMachine(r.Context(), ref, hangar.MachineUpdate{
		Config: config, CurrentVersion: in.CurrentVersion, Name: in.Name, Region: in.Region,
		SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration,
		LeaseTTL:    time.Duration(in.LeaseTTL) * time.Second,
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}))
}

func (s *server) getMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	return machineAnswer(s.Machines.Machine(r.Context(), ref))
}

func machineAnswer(m *hangar.Machine, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return ok(machineBody{m})
}

func (s *server) listMachines(r *http.Request) (answer, error) {
	app, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	q := queryOf(r)
	filter := q.machineFilter()
	summary := q.bool("summary")
	filter.Events = !summary && q.boolOr("events", true)
	if q.err != nil {
		return answer{}, q.err
	}
	machines, err := s.Machines.Machines(r.Context(), app, filter)
	if err != nil {
		return answer{}, err
	}
	if summary {
		return ok(summaryBodies(machines))
	}
	return ok(machineBodies(machines))
}

// machineFilter reads what listings of Machines have in common.
func (q *query) machineFilter() hangar.MachineFilter {
	return hangar.MachineFilter{
		IncludeDestroyed: q.bool("include_deleted"),
		Regions:          q.regions("region"),
		States:           q.states("state", ""),
		Metadata:         q.metadata(),
		UpdatedAfter:     q.time("updated_after"),
	}
}

// metadata reads the parameters metadata.KEY=VALUE.
func (q *query) metadata() map[string]string {
	var pairs map[string]string
	for name, values := range q.values {
		key, found := strings.CutPrefix(name, "metadata.")
		if !found {
			continue
		}
		if key == "" || len(values) != 1 {
			q.fail(clip(name), "must name one key and be given once")
			return nil
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[key] = values[0]
	}
	return pairs
}

func (s *server) destroyMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	q := queryOf(r)
	force, kill := q.bool("force"), q.bool("kill") // two names for the same
	if q.err != nil {
		return answer{}, q.err
	}
	if err := s.Machines.DestroyMachine(r.Context(), ref, hangar.MachineDestroy{Force: force || kill}); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) startMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	res, err := s.Machines.StartMachine(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	return ok(startView{StartResult: res})
}

func (s *server) stopMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := decodeOptional[stopWish](r)
	if err != nil {
		return answer{}, err
	}
	if err := s.Machines.StopMachine(r.Context(), ref, hangar.MachineStop{Signal: in.Signal, Timeout: time.Duration(in.Timeout)}); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) suspendMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	if err := s.Machines.SuspendMachine(r.Context(), ref); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) restartMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	q := queryOf(r)
	in := hangar.MachineRestart{
		MachineStop: hangar.MachineStop{Signal: q.signal("signal"), Timeout: q.duration("timeout", hangar.MaxStopTimeout)},
		ForceStop:   q.bool("force_stop"),
	}
	if q.err != nil {
		return answer{}, q.err
	}
	if err := s.Machines.RestartMachine(r.Context(), ref, in); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) signalMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := decode[signalWish](r)
	if err != nil {
		return answer{}, err
	}
	if in.Signal == 0 {
		return answer{}, invalid("signal", "is required: a name such as SIGTERM or a number from 1 to 64")
	}
	if err := s.Machines.SignalMachine(r.Context(), ref, in.Signal); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) cordonMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	if err := s.Machines.CordonMachine(r.Context(), ref); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) uncordonMachine(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	if err := s.Machines.UncordonMachine(r.Context(), ref); err != nil {
		return answer{}, err
	}
	return done()
}

func (s *server) waitMachine(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	in := hangar.MachineWait{
		States:    q.states("state", hangar.WaitSettled),
		Instance:  hangar.InstanceID(q.text("instance_id")),
		FromEvent: hangar.EventID(q.text("from_event_id")),
		Timeout:   q.duration("timeout", hangar.MaxWaitTimeout),
	}
	if older := q.text("version"); in.Instance == "" {
		in.Instance = hangar.InstanceID(older)
	}
	if q.err != nil {
		return q.err
	}
	if s.lot.seated.Add(1); s.lot.seated.Load() > maxSeated {
		s.lot.seated.Add(-1)
		if parked, err := s.park(w, r, ref, in); parked || err != nil {
			return err
		}
		s.lot.seated.Add(1)
	}
	defer s.lot.seated.Add(-1)
	reached, err := s.Machines.WaitMachine(r.Context(), ref, in)
	if err != nil {
		return err
	}
	s.write(w, r, answer{body: reachedView{true, reached}})
	return nil
}

func (s *server) listVersions(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	versions, err := s.Machines.MachineVersions(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	return ok(orEmpty(versions))
}

func (s *server) listProcesses(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	processes, err := s.Machines.MachineProcesses(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	views := make([]processView, 0, len(processes))
	for _, p := range processes {
		views = append(views, viewProcess(p))
	}
	return ok(views)
}

// listEvents answers with the newest events or, with follow, with every change.
func (s *server) listEvents(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	limit, follow := q.int("limit", 1, maxEvents), q.bool("follow")
	if q.err != nil {
		return q.err
	}
	if follow {
		return s.watchMachine(w, r, ref)
	}
	events, err := s.Machines.MachineEvents(r.Context(), ref, limit)
	if err != nil {
		return err
	}
	s.write(w, r, answer{body: orEmpty(events)})
	return nil
}

func (s *server) watchMachine(w http.ResponseWriter, r *http.Request, ref hangar.MachineRef) error {
	l := newLines(r.Context(), w)
	return l.end(func() error {
		for change, err := range s.Machines.WatchMachine(r.Context(), ref) {
			if err != nil {
				return err
			}
			if r.Context().Err() != nil {
				break
			}
			var view *machineView
			if change.Machine != nil {
				v, err := viewMachine(change.Machine)
				if err != nil {
					return err
				}
				view = &v
			}
			// The watcher is told by the end of its connection.
			if err := l.send(changeView{view, change.Event, change.Progress}); err != nil {
				return nil // nobody is left to read an error
			}
		}
		// A watch that ends with its context was cut short, and must not look complete.
		return r.Context().Err()
	}())
}

// orEmpty makes an empty list [] on the wire and not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
