// Package compat_test drives a real daemon as programs written for the public platform do: with
// their exact requests, their decoding into strict types, and their matching of texts and status
// codes. A second part is rude to the daemon and checks what that leaves behind.
//
// The client here is this project's own. It has no more knowledge of hangar than
// such programs have, and shares no code with package client.
package compat_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/test/daemon"
)

// client makes requests as existing clients do.
type client struct {
	base          string
	authorization string
	nonce         string // of a lease; empty: none
	http          http.Client
}

// newClient chooses the scheme by the token, as existing clients do: tokens of the
// public platform have a prefix, all others are bearer tokens. Its answers are checked
// against the OpenAPI document.
func newClient(t *testing.T, d *daemon.Daemon, token string) *client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	scheme := "Bearer"
	for _, prefix := range []string{"fm1r_", "fm1a_", "fm2_"} {
		if strings.HasPrefix(token, prefix) {
			scheme = "FlyV1"
		}
	}
	c := &client{base: d.URL(), authorization: scheme + " " + token, http: http.Client{Jar: jar, Transport: d.Transport()}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// apiError is an answer with a status above 299.
type apiError struct {
	status    int
	text      string // of "error" or, failing that, "message"
	class     string // of "status"
	requestID string
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s", e.status, e.text) }

// failure returns the answer that err stands for.
func failure(t *testing.T, err error) *apiError {
	t.Helper()
	var e *apiError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an answer with an error", err)
	}
	return e
}

// call sends in, unless nil, and decodes the answer into out, unless nil.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", c.authorization)
	if c.nonce != "" {
		r.Header.Set("Fly-Machine-Lease-Nonce", c.nonce)
	}
	r.Header.Set("User-Agent", "flyctl/0.3.200")
	r.Header.Set("Fly-Client-Interactive", "false")
	r.Header.Set("Fly-Force-Instance-Id", "ignored")
	res, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode > 299 {
		return refused(res)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}

func refused(res *http.Response) error {
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var body struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Status  string `json:"status"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return fmt.Errorf("status %d with a body that is not JSON: %q", res.StatusCode, raw)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return fmt.Errorf("status %d with content type %q", res.StatusCode, res.Header.Get("Content-Type"))
	}
	e := &apiError{status: res.StatusCode, text: body.Error, class: body.Status, requestID: res.Header.Get("Fly-Request-Id")}
	if body.Message != "" {
		e.text = body.Message
	}
	return e
}

// createApp is the wish for a new App as existing clients spell it.
type createApp struct {
	Name      string `json:"name"`
	Org       string `json:"org_slug"`
	Network   string `json:"network"`
	AppRoleID string `json:"app_role_id"`
}

type app struct {
	ID                string `json:"id"`
	Name              string `json:"name"`
	InternalNumericID int32  `json:"internal_numeric_id"`
	Network           string `json:"network"`
	Status            string `json:"status"`
	MachineCount      int64  `json:"machine_count"`
	VolumeCount       int64  `json:"volume_count"`
	Organization      struct {
		Name string `json:"name"`
		Slug string `json:"slug"`
	} `json:"organization"`
	CnameTarget *string `json:"cname_target"`
	AppRole     *string `json:"app_role"`
}

func (c *client) createApp(ctx context.Context, name string) (app, error) {
	var a app
	err := c.call(ctx, http.MethodPost, "/v1/apps?wait=true", createApp{Name: name, Org: "personal"}, &a)
	return a, err
}

func (c *client) app(ctx context.Context, name string) (app, error) {
	var a app
	return a, c.call(ctx, http.MethodGet, "/v1/apps/"+url.PathEscape(name), nil, &a)
}

func (c *client) apps(ctx context.Context, query string) ([]app, error) {
	var list struct {
		Apps []app `json:"apps"`
	}
	return list.Apps, c.call(ctx, http.MethodGet, "/v1/apps?"+query, nil, &list)
}

func (c *client) deleteApp(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/apps/"+name, nil, nil)
}

// duration is written as a string and read as a string or a number.
type duration struct{ time.Duration }

// MarshalJSON implements json.Marshaler.
func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return json.Unmarshal(b, &d.Duration)
	}
	var err error
	d.Duration, err = time.ParseDuration(text)
	return err
}

// autostop reads a boolean or "suspend" and nothing else.
type autostop string

// UnmarshalJSON implements json.Unmarshaler.
func (a *autostop) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "true":
		*a = "stop"
	case "false":
		*a = "off"
	case `"suspend"`:
		*a = "suspend"
	default:
		return fmt.Errorf("autostop is %s", b)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (a autostop) MarshalJSON() ([]byte, error) {
	return map[autostop][]byte{"stop": []byte("true"), "off": []byte("false"), "suspend": []byte(`"suspend"`)}[a], nil
}

type machineConfig struct {
	Env      map[string]string  `json:"env,omitempty"`
	Init     machineInit        `json:"init"`
	Guest    *guest             `json:"guest,omitempty"`
	Metadata map[string]string  `json:"metadata,omitempty"`
	Mounts   []mount            `json:"mounts,omitempty"`
	Services []service          `json:"services,omitempty"`
	Checks   map[string]check   `json:"checks,omitempty"`
	Image    string             `json:"image,omitempty"`
	Files    []file             `json:"files,omitempty"`
	AutoKill bool               `json:"auto_destroy,omitempty"`
	Restart  *restart           `json:"restart,omitempty"`
	DNS      *dns               `json:"dns,omitempty"`
	Metrics  *metrics           `json:"metrics,omitempty"`
	Stop     *stopConfig        `json:"stop_config,omitempty"`
	Rootfs   *map[string]string `json:"rootfs,omitempty"`
}

type dns struct {
	SkipRegistration bool     `json:"skip_registration,omitempty"`
	Nameservers      []string `json:"nameservers,omitempty"`
	Searches         []string `json:"searches,omitempty"`
	Options          []struct {
		Name  string `json:"name,omitempty"`
		Value string `json:"value,omitempty"`
	} `json:"options,omitempty"`
	Hostname string `json:"hostname,omitempty"`
}

type metrics struct {
	Port  int    `json:"port,omitempty"`
	Path  string `json:"path,omitempty"`
	HTTPS bool   `json:"https,omitempty"`
}

type machineInit struct {
	Exec       []string `json:"exec,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	SwapSizeMB *int     `json:"swap_size_mb,omitempty"`
}

type guest struct {
	CPUKind  string `json:"cpu_kind,omitempty"`
	CPUs     int    `json:"cpus,omitempty"`
	MemoryMB int    `json:"memory_mb,omitempty"`
}

type service struct {
	Protocol           string       `json:"protocol,omitempty"`
	InternalPort       int          `json:"internal_port,omitempty"`
	Autostop           *autostop    `json:"autostop,omitempty"`
	Autostart          *bool        `json:"autostart,omitempty"`
	MinMachinesRunning *int         `json:"min_machines_running,omitempty"`
	Ports              []port       `json:"ports,omitempty"`
	Checks             []check      `json:"checks,omitempty"`
	Concurrency        *concurrency `json:"concurrency,omitempty"`
	ForceInstanceKey   *string      `json:"force_instance_key"`
}

type port struct {
	Port       *int     `json:"port,omitempty"`
	StartPort  *int     `json:"start_port,omitempty"`
	EndPort    *int     `json:"end_port,omitempty"`
	Handlers   []string `json:"handlers,omitempty"`
	ForceHTTPS bool     `json:"force_https,omitempty"`
	TLSOptions *struct {
		ALPN              []string `json:"alpn,omitempty"`
		Versions          []string `json:"versions,omitempty"`
		DefaultSelfSigned *bool    `json:"default_self_signed,omitempty"`
	} `json:"tls_options,omitempty"`
	HTTPOptions *struct {
		Compress           *bool   `json:"compress,omitempty"`
		H2Backend          *bool   `json:"h2_backend,omitempty"`
		IdleTimeout        *uint32 `json:"idle_timeout,omitempty"`
		HeadersReadTimeout *uint32 `json:"headers_read_timeout,omitempty"`
		Response           *struct {
			Headers  map[string]any `json:"headers,omitempty"`
			Pristine *bool          `json:"pristine,omitempty"`
		} `json:"response,omitempty"`
	} `json:"http_options,omitempty"`
	ProxyProtoOptions *struct {
		Version string `json:"version,omitempty"`
	} `json:"proxy_proto_options,omitempty"`
}

type concurrency struct {
	Type      string `json:"type,omitempty"`
	HardLimit int    `json:"hard_limit,omitempty"`
	SoftLimit int    `json:"soft_limit,omitempty"`
}

type check struct {
	Port        *int      `json:"port,omitempty"`
	Type        *string   `json:"type,omitempty"`
	Interval    *duration `json:"interval,omitempty"`
	Timeout     *duration `json:"timeout,omitempty"`
	GracePeriod *duration `json:"grace_period,omitempty"`
	HTTPMethod  *string   `json:"method,omitempty"`
	HTTPPath    *string   `json:"path,omitempty"`
	HTTPHeaders []header  `json:"headers,omitempty"`
}

type header struct {
	Name   string   `json:"name,omitempty"`
	Values []string `json:"values,omitempty"`
}

type file struct {
	GuestPath string  `json:"guest_path,omitempty"`
	RawValue  *string `json:"raw_value,omitempty"`
	Mode      uint32  `json:"mode,omitempty"`
}

type restart struct {
	Policy     string `json:"policy,omitempty"`
	MaxRetries int    `json:"max_retries,omitempty"`
}

type stopConfig struct {
	Timeout *duration `json:"timeout,omitempty"`
	Signal  *string   `json:"signal,omitempty"`
}

// launch is the body of create and update as existing clients spell it.
type launch struct {
	Config                  *machineConfig `json:"config,omitempty"`
	Region                  string         `json:"region,omitempty"`
	Name                    string         `json:"name,omitempty"`
	SkipLaunch              bool           `json:"skip_launch,omitempty"`
	SkipServiceRegistration bool           `json:"skip_service_registration,omitempty"`
	SkipSecrets             bool           `json:"skip_secrets"`
	MinSecretsVersion       *uint64        `json:"min_secrets_version,omitempty"`
}

type machine struct {
	ID         string         `json:"id,omitempty"`
	Name       string         `json:"name,omitempty"`
	State      string         `json:"state,omitempty"`
	Region     string         `json:"region,omitempty"`
	ImageRef   imageRef       `json:"image_ref"`
	InstanceID string         `json:"instance_id,omitempty"`
	Version    string         `json:"version,omitempty"`
	PrivateIP  string         `json:"private_ip,omitempty"`
	CreatedAt  string         `json:"created_at,omitempty"`
	UpdatedAt  string         `json:"updated_at,omitempty"`
	Config     *machineConfig `json:"config,omitempty"`
	Events     []*event       `json:"events,omitempty"`
	Checks     []*checkStatus `json:"checks,omitempty"`
	Nonce      string         `json:"nonce,omitempty"`
	HostStatus string         `json:"host_status,omitempty"`
	Cordoned   bool           `json:"cordoned"`
	Incomplete *machineConfig `json:"incomplete_config,omitempty"`
}

type imageRef struct {
	Registry   string            `json:"registry,omitempty"`
	Repository string            `json:"repository,omitempty"`
	Tag        string            `json:"tag,omitempty"`
	Digest     string            `json:"digest,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

type checkStatus struct {
	Name      string     `json:"name,omitempty"`
	Status    string     `json:"status,omitempty"`
	Output    string     `json:"output,omitempty"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
}

type event struct {
	Type      string        `json:"type,omitempty"`
	Status    string        `json:"status,omitempty"`
	Request   *eventRequest `json:"request,omitempty"`
	Source    string        `json:"source,omitempty"`
	Timestamp int64         `json:"timestamp,omitempty"`
}

type eventRequest struct {
	ExitEvent    *exitEvent `json:"exit_event,omitempty"`
	MonitorEvent *struct {
		ExitEvent *exitEvent `json:"exit_event,omitempty"`
	} `json:"MonitorEvent,omitempty"`
	RestartCount int `json:"restart_count,omitempty"`
}

type exitEvent struct {
	ExitCode      int       `json:"exit_code,omitempty"`
	GuestExitCode int       `json:"guest_exit_code,omitempty"`
	GuestSignal   int       `json:"guest_signal,omitempty"`
	OOMKilled     bool      `json:"oom_killed,omitempty"`
	RequestedStop bool      `json:"requested_stop,omitempty"`
	Restarting    bool      `json:"restarting,omitempty"`
	Signal        int       `json:"signal,omitempty"`
	ExitedAt      time.Time `json:"exited_at"`
}

// newest returns the newest event of a type, or nil.
func (m *machine) newest(typ string) *event {
	for _, e := range m.Events {
		if e.Type == typ {
			return e
		}
	}
	return nil
}

// startedAfterLaunch is how clients find out since when a version runs.
func (m *machine) startedAfterLaunch() bool {
	for _, e := range m.Events {
		switch e.Type {
		case "start":
			return true
		case "launch", "exit":
			return false
		}
	}
	return false
}

func machines(app string, more ...string) string {
	return "/v1/apps/" + app + "/machines" + strings.Join(append([]string{""}, more...), "/")
}

func (c *client) launch(ctx context.Context, app string, in launch) (*machine, error) {
	m := new(machine)
	return m, c.call(ctx, http.MethodPost, machines(app), in, m)
}

func (c *client) update(ctx context.Context, app, id string, in launch) (*machine, error) {
	m := new(machine)
	return m, c.call(ctx, http.MethodPost, machines(app, id), in, m)
}

func (c *client) get(ctx context.Context, app, id string) (*machine, error) {
	m := new(machine)
	return m, c.call(ctx, http.MethodGet, machines(app, id), nil, m)
}

func (c *client) list(ctx context.Context, app, query string) ([]*machine, error) {
	var list []*machine
	if query != "" {
		query = "?" + query
	}
	return list, c.call(ctx, http.MethodGet, machines(app)+query, nil, &list)
}

func (c *client) start(ctx context.Context, app, id string) (previous string, err error) {
	var out struct {
		Message       string `json:"message"`
		Status        string `json:"status"`
		PreviousState string `json:"previous_state"`
	}
	err = c.call(ctx, http.MethodPost, machines(app, id, "start"), nil, &out)
	if err == nil && out.Status == "error" {
		err = errors.New(out.Message)
	}
	return out.PreviousState, err
}

// stop sends what clients do: the id again, and a timeout even if none was chosen.
func (c *client) stop(ctx context.Context, app, id, signal string, timeout time.Duration) error {
	in := struct {
		ID      string   `json:"id,omitempty"`
		Signal  string   `json:"signal,omitempty"`
		Timeout duration `json:"timeout"`
	}{id, signal, duration{timeout}}
	return c.call(ctx, http.MethodPost, machines(app, id, "stop"), in, nil)
}

func (c *client) suspend(ctx context.Context, app, id string) error {
	return c.call(ctx, http.MethodPost, machines(app, id, "suspend"), nil, nil)
}

func (c *client) restart(ctx context.Context, app, id string, force bool, timeout time.Duration, signal string) error {
	query := "?force_stop=" + strconv.FormatBool(force)
	if timeout != 0 {
		query += "&timeout=" + timeout.String()
	}
	if signal != "" {
		query += "&signal=" + signal
	}
	return c.call(ctx, http.MethodPost, machines(app, id, "restart")+query, nil, nil)
}

func (c *client) kill(ctx context.Context, app, id string) error {
	return c.call(ctx, http.MethodPost, machines(app, id, "signal"), map[string]any{"signal": 9}, nil)
}

func (c *client) destroy(ctx context.Context, app, id string, kill bool) error {
	return c.call(ctx, http.MethodDelete, machines(app, id)+"?kill="+strconv.FormatBool(kill), nil, nil)
}

// wait asks once. Clients ask again after 408, and give up after 400.
func (c *client) wait(ctx context.Context, app, id string, query url.Values) error {
	if !query.Has("timeout") {
		query.Set("timeout", "60")
	}
	return c.call(ctx, http.MethodGet, machines(app, id, "wait")+"?"+query.Encode(), nil, nil)
}

type execResponse struct {
	ExitCode int32  `json:"exit_code,omitempty"`
	StdOut   string `json:"stdout,omitempty"`
	StdErr   string `json:"stderr,omitempty"`
}

func (c *client) exec(ctx context.Context, app, id, cmd, stdin string, timeout int) (execResponse, error) {
	in := struct {
		Cmd     string `json:"cmd,omitempty"`
		Stdin   string `json:"stdin,omitempty"`
		Timeout int    `json:"timeout,omitempty"`
	}{cmd, stdin, timeout}
	var out execResponse
	return out, c.call(ctx, http.MethodPost, machines(app, id, "exec"), in, &out)
}

// process has whole numbers without a sign, so that any other fails to decode.
type process struct {
	Pid           int32          `json:"pid"`
	Stime         uint64         `json:"stime"`
	Rtime         uint64         `json:"rtime"`
	Command       string         `json:"command"`
	Directory     string         `json:"directory"`
	CPU           uint64         `json:"cpu"`
	Rss           uint64         `json:"rss"`
	ListenSockets []listenSocket `json:"listen_sockets"`
}

type listenSocket struct {
	Proto   string `json:"proto"`
	Address string `json:"address"`
}

func (c *client) processes(ctx context.Context, app, id string) ([]process, error) {
	var list []process
	return list, c.call(ctx, http.MethodGet, machines(app, id, "ps"), nil, &list)
}

type logEntry struct {
	Timestamp string `json:"timestamp"`
	Message   string `json:"message"`
	Level     string `json:"level"`
	Instance  string `json:"instance"`
	Region    string `json:"region"`
	Meta      struct {
		Instance string `json:"instance"`
		Region   string `json:"region"`
		Event    struct {
			Provider string `json:"provider"`
		} `json:"event"`
	} `json:"meta"`
}

// logs asks for one page, by the path that clients without a private network use.
func (c *client) logs(ctx context.Context, app, token, region, instance string) (entries []logEntry, next string, err error) {
	query := url.Values{"next_token": {token}}
	if instance != "" {
		query.Set("instance", instance)
	}
	if region != "" {
		query.Set("region", region)
	}
	var page struct {
		Data []struct {
			ID         string
			Attributes logEntry
		}
		Meta struct {
			NextToken string `json:"next_token"`
		}
	}
	err = c.call(ctx, http.MethodGet, "/api/v1/apps/"+app+"/logs?"+query.Encode(), nil, &page)
	for _, d := range page.Data {
		entries = append(entries, d.Attributes)
	}
	return entries, page.Meta.NextToken, err
}
