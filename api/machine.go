package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

const maxEvents = 50

// machineRequest is the body of create and update.
type machineRequest struct {
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

// stopRequest is the body of stop.
type stopRequest struct {
	Signal  hangar.Signal `json:"signal"`
	Timeout stopTimeout   `json:"timeout"`
}

// signalRequest is the body of signal.
type signalRequest struct {
	Signal hangar.Signal `json:"signal" schema:"required"`
}

func decodeRequest(r *http.Request) (machineRequest, hangar.MachineConfig, error) {
	in, err := input.Decode[machineRequest](r)
	if err != nil {
		return in, hangar.MachineConfig{}, err
	}
	switch {
	case len(in.Config.RawMessage) == 0 || string(in.Config.RawMessage) == "null":
		err = input.Invalid("config", "is required")
	case len(in.Name) > input.MaxText:
		err = input.Invalid("name", "has %d bytes, more than the %d that are allowed", len(in.Name), input.MaxText)
	case len(in.Region) > input.MaxText:
		err = input.Invalid("region", "has %d bytes, more than the %d that are allowed", len(in.Region), input.MaxText)
	case in.LeaseTTL < 0 || in.LeaseTTL > maxLeaseSeconds:
		err = input.Invalid("lease_ttl", "a lease lasts from 1 to %d seconds", maxLeaseSeconds)
	case in.LSVD:
		err = input.Unsupported("lsvd", "log-structured disks are not offered by this server")
	}
	if err != nil {
		return in, hangar.MachineConfig{}, err
	}
	config, err := hangar.ParseMachineConfig(in.Config.RawMessage)
	return in, config, err
}

func (s *server) createMachine(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, config, err := decodeRequest(r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.CurrentVersion != "" {
		return router.Answer{}, input.Invalid("current_version", "is for updates; a new machine has none")
	}
	return machineAnswer(s.Machines.CreateMachine(r.Context(), app, hangar.MachineCreate{
		Name: in.Name, Region: in.Region, Config: config, SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration,
		LeaseTTL:    time.Duration(in.LeaseTTL) * time.Second,
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}))
}

func (s *server) updateMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, config, err := decodeRequest(r)
	if err != nil {
		return router.Answer{}, err
	}
	return machineAnswer(s.Machines.UpdateMachine(r.Context(), ref, hangar.MachineUpdate{
		Config: config, CurrentVersion: in.CurrentVersion, Name: in.Name, Region: in.Region,
		SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration,
		LeaseTTL:    time.Duration(in.LeaseTTL) * time.Second,
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}))
}

func (s *server) getMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return machineAnswer(s.Machines.Machine(r.Context(), ref))
}

func machineAnswer(m *hangar.Machine, err error) (router.Answer, error) {
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(view.MachineBody{Machine: m})
}

func (s *server) listMachines(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	filter := machineFilter(q)
	summary := q.Bool("summary")
	filter.Events = !summary && q.BoolOr("events", true)
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	machines, err := s.Machines.Machines(r.Context(), app, filter)
	if err != nil {
		return router.Answer{}, err
	}
	if summary {
		return router.OK(view.SummaryBodies(machines))
	}
	return router.OK(view.MachineBodies(machines))
}

// machineFilter reads the parameters that all listings of Machines have.
func machineFilter(q *input.Query) hangar.MachineFilter {
	return hangar.MachineFilter{
		IncludeDestroyed: q.Bool("include_deleted"),
		Regions:          q.Regions("region"),
		States:           q.States("state", ""),
		Metadata:         metadataOf(q),
		UpdatedAfter:     q.Time("updated_after"),
	}
}

// metadataOf reads the parameters metadata.KEY=VALUE.
func metadataOf(q *input.Query) map[string]string {
	var pairs map[string]string
	for name, values := range q.Values {
		key, found := strings.CutPrefix(name, "metadata.")
		if !found {
			continue
		}
		if key == "" || len(values) != 1 {
			q.Fail(input.Clip(name), "must name one key and be given once")
			return nil
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[key] = values[0]
	}
	return pairs
}

func (s *server) destroyMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	force, kill := q.Bool("force"), q.Bool("kill") // two names for one thing
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	return router.Done(s.Machines.DestroyMachine(r.Context(), ref, hangar.MachineDestroy{Force: force || kill}))
}

func (s *server) startMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	res, err := s.Machines.StartMachine(r.Context(), ref)
	return router.AnswerOf(view.Start{StartResult: res}, err)
}

func (s *server) stopMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.DecodeOptional[stopRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Done(s.Machines.StopMachine(r.Context(), ref, hangar.MachineStop{Signal: in.Signal, Timeout: time.Duration(in.Timeout)}))
}

func (s *server) suspendMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Done(s.Machines.SuspendMachine(r.Context(), ref))
}

func (s *server) restartMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	in := hangar.MachineRestart{
		MachineStop: hangar.MachineStop{Signal: q.Signal("signal"), Timeout: q.Duration("timeout", hangar.MaxStopTimeout)},
		ForceStop:   q.Bool("force_stop"),
	}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	return router.Done(s.Machines.RestartMachine(r.Context(), ref, in))
}

func (s *server) signalMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[signalRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Signal == 0 {
		return router.Answer{}, input.Invalid("signal", "is required: a name such as SIGTERM or a number from 1 to 64")
	}
	return router.Done(s.Machines.SignalMachine(r.Context(), ref, in.Signal))
}

func (s *server) cordonMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Done(s.Machines.CordonMachine(r.Context(), ref))
}

func (s *server) uncordonMachine(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Done(s.Machines.UncordonMachine(r.Context(), ref))
}

func (s *server) waitMachine(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := input.QueryOf(r)
	in := hangar.MachineWait{
		States:    q.States("state", hangar.WaitSettled),
		Instance:  hangar.InstanceID(q.Text("instance_id")),
		FromEvent: hangar.EventID(q.Text("from_event_id")),
		Timeout:   q.Duration("timeout", hangar.MaxWaitTimeout),
	}
	if older := q.Text("version"); in.Instance == "" {
		in.Instance = hangar.InstanceID(older)
	}
	if q.Err != nil {
		return q.Err
	}
	if s.seated.Add(1); s.seated.Load() > maxSeated {
		s.seated.Add(-1)
		if parked, err := s.park(w, r, ref, in); parked || err != nil {
			return err
		}
		s.seated.Add(1)
	}
	defer s.seated.Add(-1)
	reached, err := s.Machines.WaitMachine(r.Context(), ref, in)
	if err != nil {
		return err
	}
	s.Write(w, r, router.Answer{Body: view.Reached{OK: true, MachineReached: reached}})
	return nil
}

func (s *server) listVersions(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	versions, err := s.Machines.MachineVersions(r.Context(), ref)
	return router.AnswerOf(view.OrEmpty(versions), err)
}

func (s *server) listProcesses(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	processes, err := s.Machines.MachineProcesses(r.Context(), ref)
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]view.Process, 0, len(processes))
	for _, p := range processes {
		views = append(views, view.OfProcess(p))
	}
	return router.OK(views)
}

// listEvents answers with the newest events or, with follow, with every change.
func (s *server) listEvents(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := input.QueryOf(r)
	limit, follow := q.Int("limit", 1, maxEvents), q.Bool("follow")
	if q.Err != nil {
		return q.Err
	}
	if follow {
		return s.watchMachine(w, r, ref)
	}
	events, err := s.Machines.MachineEvents(r.Context(), ref, limit)
	if err != nil {
		return err
	}
	s.Write(w, r, router.Answer{Body: view.OrEmpty(events)})
	return nil
}

func (s *server) watchMachine(w http.ResponseWriter, r *http.Request, ref hangar.MachineRef) error {
	l := router.NewLines(r.Context(), w)
	return l.End(func() error {
		for change, err := range s.Machines.WatchMachine(r.Context(), ref) {
			if err != nil {
				return err
			}
			if r.Context().Err() != nil {
				break
			}
			step := view.Change{Event: change.Event, Progress: change.Progress}
			if change.Machine != nil {
				m, err := view.OfMachine(change.Machine)
				if err != nil {
					return err
				}
				step.Machine = &m
			}
			if err := l.Send(step); err != nil {
				return nil // there is no reader left for an error
			}
		}
		// A watch that ends with its context was cut short, and must not look complete.
		return r.Context().Err()
	}())
}
