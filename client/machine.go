package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// machineRequest is the body of create and update.
type machineRequest struct {
	Name                    string               `json:"name,omitempty"`
	Region                  hangar.Region        `json:"region,omitempty"`
	Config                  hangar.MachineConfig `json:"config"`
	CurrentVersion          hangar.InstanceID    `json:"current_version,omitempty"`
	SkipLaunch              bool                 `json:"skip_launch,omitempty"`
	SkipServiceRegistration bool                 `json:"skip_service_registration,omitempty"`
	LeaseTTL                int64                `json:"lease_ttl,omitempty"` // seconds
	SkipSecrets             bool                 `json:"skip_secrets,omitempty"`
	MinSecretsVersion       int                  `json:"min_secrets_version,omitempty"`
}

// CreateMachine implements hangar.MachineService.
func (c *Client) CreateMachine(ctx context.Context, app hangar.AppName, in hangar.MachineCreate) (*hangar.Machine, error) {
	return c.machine(ctx, call{method: http.MethodPost, path: appPath(app, "machines"), in: machineRequest{
		Name: in.Name, Region: in.Region, Config: in.Config,
		SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration, LeaseTTL: wholeSeconds(in.LeaseTTL),
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}})
}

// Machines implements hangar.MachineService.
func (c *Client) Machines(ctx context.Context, app hangar.AppName, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	in := get(appPath(app, "machines"))
	in.query = filterQuery(filter)
	if !filter.Events {
		in.query.Set("events", "false")
	}
	var out []*hangar.Machine
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// filterQuery returns a filter as parameters, without Events.
func filterQuery(filter hangar.MachineFilter) url.Values {
	query := url.Values{}
	if filter.IncludeDestroyed {
		query.Set("include_deleted", "true")
	}
	for _, r := range filter.Regions {
		query.Add("region", string(r))
	}
	for _, s := range filter.States {
		query.Add("state", string(s))
	}
	for k, v := range filter.Metadata {
		query.Set("metadata."+k, v)
	}
	if !filter.UpdatedAfter.IsZero() {
		query.Set("updated_after", filter.UpdatedAfter.UTC().Format(time.RFC3339Nano))
	}
	return query
}

// OrgMachines implements hangar.MachineService.
func (c *Client) OrgMachines(ctx context.Context, org hangar.OrgSlug, q hangar.MachinePageQuery) (hangar.MachinePage, error) {
	in := get(pathOf("v1", "orgs", string(org), "machines"))
	in.query = filterQuery(q.MachineFilter)
	if q.Cursor != "" {
		in.query.Set("cursor", q.Cursor)
	}
	if q.Limit != 0 {
		in.query.Set("limit", strconv.Itoa(q.Limit))
	}
	var out struct {
		Machines     []*hangar.Machine `json:"machines"`
		Next         string            `json:"next_cursor"`
		LastUpdated  time.Time         `json:"last_updated_at"`
		ErrorRegions []hangar.Region   `json:"error_regions"`
	}
	if err := c.do(ctx, in, &out); err != nil {
		return hangar.MachinePage{}, err
	}
	return hangar.MachinePage{
		Machines: out.Machines, Next: out.Next, LastUpdated: out.LastUpdated, ErrorRegions: out.ErrorRegions,
	}, nil
}

// Machine implements hangar.MachineOps.
func (c *Client) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	return c.machine(ctx, get(machinePath(ref)))
}

// UpdateMachine implements hangar.MachineOps.
func (c *Client) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	return c.machine(ctx, call{method: http.MethodPost, path: machinePath(ref), in: machineRequest{
		Name: in.Name, Region: in.Region, Config: in.Config, CurrentVersion: in.CurrentVersion,
		SkipLaunch: in.SkipLaunch, SkipServiceRegistration: in.SkipServiceRegistration, LeaseTTL: wholeSeconds(in.LeaseTTL),
		SkipSecrets: in.SkipSecrets, MinSecretsVersion: in.MinSecretsVersion,
	}})
}

func (c *Client) machine(ctx context.Context, in call) (*hangar.Machine, error) {
	var m hangar.Machine
	if err := c.do(ctx, in, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// StartMachine implements hangar.MachineOps.
func (c *Client) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	var out hangar.StartResult
	err := c.do(ctx, post(machinePath(ref, "start")), &out)
	return out, err
}

// StopMachine implements hangar.MachineOps.
func (c *Client) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	body := map[string]any{}
	if in.Signal != 0 {
		body["signal"] = in.Signal
	}
	if in.Timeout != 0 {
		body["timeout"] = in.Timeout.String()
	}
	to := post(machinePath(ref, "stop"))
	to.in = body
	return c.do(ctx, to, nil)
}

// SuspendMachine implements hangar.MachineOps.
func (c *Client) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	return c.do(ctx, post(machinePath(ref, "suspend")), nil)
}

// RestartMachine implements hangar.MachineOps.
func (c *Client) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	to := post(machinePath(ref, "restart"))
	to.query = url.Values{}
	if in.ForceStop {
		to.query.Set("force_stop", "true")
	}
	if in.Signal != 0 {
		to.query.Set("signal", in.Signal.String())
	}
	if in.Timeout != 0 {
		to.query.Set("timeout", in.Timeout.String())
	}
	return c.do(ctx, to, nil)
}

// SignalMachine implements hangar.MachineOps.
func (c *Client) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	to := post(machinePath(ref, "signal"))
	to.in = map[string]any{"signal": sig}
	return c.do(ctx, to, nil)
}

// DestroyMachine implements hangar.MachineOps.
func (c *Client) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	q := url.Values{"force": {strconv.FormatBool(in.Force)}}
	return c.do(ctx, call{method: http.MethodDelete, path: machinePath(ref), query: q}, nil)
}

// CordonMachine implements hangar.MachineOps.
func (c *Client) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return c.do(ctx, post(machinePath(ref, "cordon")), nil)
}

// UncordonMachine implements hangar.MachineOps.
func (c *Client) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return c.do(ctx, post(machinePath(ref, "uncordon")), nil)
}

// WaitMachine implements hangar.MachineOps.
func (c *Client) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	to := get(machinePath(ref, "wait"))
	to.query = url.Values{}
	for _, s := range in.States {
		to.query.Add("state", string(s))
	}
	if in.Instance != "" {
		to.query.Set("instance_id", string(in.Instance))
	}
	if in.FromEvent != "" {
		to.query.Set("from_event_id", string(in.FromEvent))
	}
	if in.Timeout != 0 {
		to.query.Set("timeout", in.Timeout.String())
	}
	var out hangar.MachineReached
	err := c.do(ctx, to, &out)
	return out, err
}

// MachineEvents implements hangar.MachineReader.
func (c *Client) MachineEvents(ctx context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	in := get(machinePath(ref, "events"))
	if limit != 0 {
		in.query = url.Values{"limit": {strconv.Itoa(limit)}}
	}
	var out []hangar.Event
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// MachineVersions implements hangar.MachineReader.
func (c *Client) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	var out []hangar.MachineVersion
	if err := c.do(ctx, get(machinePath(ref, "versions")), &out); err != nil {
		return nil, err
	}
	return out, nil
}

// MachineProcesses implements hangar.MachineReader.
func (c *Client) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	var listed []struct {
		hangar.Process
		CPU float64 `json:"cpu"` // percent
	}
	if err := c.do(ctx, get(machinePath(ref, "ps")), &listed); err != nil {
		return nil, err
	}
	out := make([]hangar.Process, 0, len(listed))
	for _, p := range listed {
		p.Process.CPU = p.CPU / 100
		out = append(out, p.Process)
	}
	return out, nil
}

func post(path string) call { return call{method: http.MethodPost, path: path} }

func machinePath(ref hangar.MachineRef, more ...string) string {
	return appPath(ref.App, append([]string{"machines", string(ref.ID)}, more...)...)
}

// streamIdle is how long a stream may be silent before it counts as lost. The server sends keepalives
// much more often.
const streamIdle = 90 * time.Second
