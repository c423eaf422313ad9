// Package appconfig reads the file that describes an App, hangar.toml or fly.toml, and makes configs
// of Machines from it.
//
// It is strict: an unknown key is an error with its line and a similar key. The struct tags of File and
// its parts describe each key: json is its name, doc its text in editors, note the reason why it has no
// effect, and refuse a key of refusals, with the reason why it is an error. The check, the decoding and
// the JSON Schema all follow from them.
package appconfig

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// The names of the file, the preferred one first.
const (
	FileName       = "hangar.toml"
	FileNameCompat = "fly.toml"
)

// DefaultGroup is the process group of a file that has no processes.
const DefaultGroup = "app"

// MaxFileBytes bounds a file.
const MaxFileBytes = hangar.MaxReleaseDefinition

// Texts about features that are not offered: the reason, and after the | what to do instead.
const (
	noGPU      = "GPUs are not offered|leave them out: a program that needs one has to run elsewhere, and the App can call it"
	noPostgres = "managed PostgreSQL is not offered|add a database with `hangar extensions create`, or run the image postgres as an App with a volume"
	noRedis    = "managed Redis is not offered|add one with `hangar extensions create`, or run the image valkey/valkey as an App"
	noBilling  = "there is no billing|there is nothing to set: `hangar orgs quota` bounds what an organization uses"
	noConsul   = "Consul is not offered|leave it out: `hangar-db` elects a primary for SQLite databases"
)

// File is the description of an App. The zero value of a field is a key that the file does not have.
type File struct {
	Schema         string              `json:"$schema,omitempty" doc:"Where the JSON Schema of this file is." note:"only editors read it"`
	App            hangar.AppName      `json:"app,omitempty" doc:"Name of the App."`
	PrimaryRegion  hangar.Region       `json:"primary_region,omitempty" doc:"Region of new Machines, and the one in which min_machines_running counts."`
	KillSignal     string              `json:"kill_signal,omitempty" doc:"Signal that asks a program to end, e.g. SIGTERM."`
	KillTimeout    *Seconds            `json:"kill_timeout,omitempty" doc:"Time that a program has to end, as 30 (seconds) or \"30s\"."`
	SwapSizeMB     int                 `json:"swap_size_mb,omitempty" doc:"Swap of each Machine, in MiB."`
	ConsoleCommand string              `json:"console_command,omitempty" doc:"Command of an interactive console." note:"use hangar machine exec -it"`
	HostDedication string              `json:"host_dedication_id,omitempty" doc:"A dedicated host." note:"there are no dedicated hosts"`
	Build          *Build              `json:"build,omitempty" doc:"Where the image comes from."`
	Deploy         *Deploy             `json:"deploy,omitempty" doc:"How a release replaces the one before."`
	Env            map[string]Text     `json:"env,omitempty" doc:"Variables of the environment. Secrets belong to hangar secrets set."`
	HTTPService    *HTTPService        `json:"http_service,omitempty" doc:"A service at the ports 80 and 443."`
	Services       []Service           `json:"services,omitempty" doc:"Services at ports of their own."`
	Checks         map[string]TopCheck `json:"checks,omitempty" doc:"Health checks that belong to no service, by name."`
	VM             Many[VM]            `json:"vm,omitempty" doc:"Size of Machines."`
	Mounts         Many[Mount]         `json:"mounts,omitempty" doc:"Volumes. Each Machine has one of its own."`
	Processes      map[string]string   `json:"processes,omitempty" doc:"Process groups: name and command. Each has Machines of its own."`
	Files          []LocalFile         `json:"files,omitempty" doc:"Files that are written before the program starts."`
	Statics        []Static            `json:"statics,omitempty" doc:"Files that the edge serves without asking the program."`
	Metrics        Many[Metrics]       `json:"metrics,omitempty" doc:"Where metrics are scraped."`
	Restart        Many[Restart]       `json:"restart,omitempty" doc:"What follows the end of a program."`
	Experimental   *Experimental       `json:"experimental,omitempty" doc:"Another command."`
	Scale          map[string]int      `json:"scale,omitempty" doc:"Number of Machines of each process group. Without it the number stays, at first one. A key of hangar.toml alone."`
	Standbys       map[string]int      `json:"standbys,omitempty" doc:"Number of Machines of each process group that stand by for the others, stopped: the platform does not start them. A key of hangar.toml alone."`
	Postgres       any                 `json:"postgres,omitempty" refuse:"managed PostgreSQL"`
	MPG            any                 `json:"mpg,omitempty" refuse:"managed PostgreSQL"`
	Redis          any                 `json:"redis,omitempty" refuse:"managed Redis"`
	Consul         any                 `json:"consul,omitempty" refuse:"Consul"`
	Billing        any                 `json:"billing,omitempty" refuse:"billing"`
	Containers     any                 `json:"containers,omitempty" refuse:"several containers"`
	MachineConfig  any                 `json:"machine_config,omitempty" refuse:"a config of Machines in another file"`
}

// refusals are the texts of the refuse tags: the reason, and after the | what to do instead.
var refusals = map[string]string{
	"GPU":                noGPU,
	"managed PostgreSQL": noPostgres,
	"managed Redis":      noRedis,
	"billing":            noBilling,
	"Consul":             noConsul,
	"several containers": "several containers in one Machine are not offered|make each a process group of its own in [processes], or an App of its own",
	"a config of Machines in another file": "a config of Machines in another file is not offered|write what it has as keys of this file, " +
		"or use `hangar machine run --config`",
	"seed":         "a command that runs only after the first deploy is not offered|run it with `hangar machine exec` after the deploy",
	"rate control": "Apps are not scaled by load|set a number in [scale]; auto_start_machines and auto_stop_machines start and stop Machines on demand",
}

// Build says where the image comes from.
type Build struct {
	Image       string          `json:"image,omitempty" doc:"Reference of the image, e.g. registry.example.com/web:12."`
	Dockerfile  string          `json:"dockerfile,omitempty" doc:"Path of the Dockerfile of which docker, podman or buildah on this computer builds the image, if no image is named (default Dockerfile)."`
	Builder     string          `json:"builder,omitempty" note:"images are built of a Dockerfile"`
	Buildpacks  []string        `json:"buildpacks,omitempty" note:"images are built of a Dockerfile"`
	Builtin     string          `json:"builtin,omitempty" note:"images are built of a Dockerfile"`
	Settings    map[string]any  `json:"settings,omitempty" note:"images are built of a Dockerfile"`
	Args        map[string]Text `json:"args,omitempty" doc:"Build arguments of the Dockerfile."`
	Target      string          `json:"build-target,omitempty" doc:"Stage of the Dockerfile (default the last)."`
	IgnoreFile  string          `json:"ignorefile,omitempty" note:"images are built of a Dockerfile"`
	Compression string          `json:"compression,omitempty" note:"images are built of a Dockerfile"`
}

// Packs reports whether the file requests an image that is built without a Dockerfile.
func (b *Build) Packs() bool {
	return b != nil && b.Dockerfile == "" && (b.Builder != "" || len(b.Buildpacks) > 0 || b.Builtin != "")
}

// Deploy says how a release replaces the one before.
type Deploy struct {
	Strategy              Strategy  `json:"strategy,omitempty" doc:"In which order Machines are changed (default rolling)."`
	MaxUnavailable        *Fraction `json:"max_unavailable,omitempty" doc:"Machines of a group that may be away at once: a number, or a fraction below 1 (default 0.33)."`
	ReleaseCommand        string    `json:"release_command,omitempty" doc:"Command that runs once, in a Machine of its own, before anything is changed."`
	ReleaseCommandTimeout *Seconds  `json:"release_command_timeout,omitempty" doc:"Time that it may take (default 5m)."`
	ReleaseCommandVM      *VM       `json:"release_command_vm,omitempty" doc:"Size of its Machine."`
	WaitTimeout           *Seconds  `json:"wait_timeout,omitempty" doc:"Time that a Machine has to start and to pass its checks (default 5m)."`
	SeedCommand           any       `json:"seed_command,omitempty" refuse:"seed"`
}

// HTTPService is a service at the ports 80 and 443.
type HTTPService struct {
	InternalPort int                 `json:"internal_port,omitempty" doc:"Port of the program (default 8080)."`
	ForceHTTPS   bool                `json:"force_https,omitempty" doc:"Redirect HTTP to HTTPS."`
	TLS          *hangar.TLSOptions  `json:"tls_options,omitempty" doc:"Options of TLS."`
	HTTP         *hangar.HTTPOptions `json:"http_options,omitempty" doc:"Options of HTTP."`
	serviceKeys
}

// Service is a service at ports of its own.
type Service struct {
	Protocol     string               `json:"protocol,omitempty" doc:"tcp or udp (default tcp)."`
	InternalPort int                  `json:"internal_port,omitempty" doc:"Port of the program (default 8080)."`
	Ports        []hangar.ServicePort `json:"ports,omitempty" doc:"Public ports, and how their traffic is handled."`
	TCPChecks    []Check              `json:"tcp_checks,omitempty" doc:"Checks that connect."`
	HTTPChecks   []Check              `json:"http_checks,omitempty" doc:"Checks that send a request."`
	serviceKeys
}

// serviceKeys are the keys that both kinds of service have.
type serviceKeys struct {
	Processes          []string                   `json:"processes,omitempty" doc:"Process groups that it belongs to (default the first one)."`
	AutoStop           *Autostop                  `json:"auto_stop_machines,omitempty" doc:"Whether idle Machines are stopped or suspended."`
	AutoStart          *bool                      `json:"auto_start_machines,omitempty" doc:"Whether a request starts a Machine."`
	MinMachinesRunning *int                       `json:"min_machines_running,omitempty" doc:"Machines in the primary region that are not stopped for being idle."`
	AutoStopAfter      *Seconds                   `json:"autostop_after,omitempty" doc:"Time that a Machine is idle before it is stopped. A key of hangar.toml alone."`
	Concurrency        *hangar.ServiceConcurrency `json:"concurrency,omitempty" doc:"What the edge sends to one Machine."`
	Checks             []Check                    `json:"checks,omitempty" doc:"Checks that send a request, or connect if their type is tcp."`
	MachineChecks      []MachineCheck             `json:"machine_checks,omitempty" doc:"Programs that try the first new Machine, and have to end with 0."`
}

// Check is a health check of a service.
type Check struct {
	Type          string          `json:"type,omitempty" doc:"http or tcp."`
	Port          int             `json:"port,omitempty" doc:"Port that is asked (default that of the service)."`
	Interval      *Millis         `json:"interval,omitempty" doc:"Time between runs, as \"15s\" or 15000 (milliseconds)."`
	Timeout       *Millis         `json:"timeout,omitempty" doc:"Time that a run may take."`
	GracePeriod   *Millis         `json:"grace_period,omitempty" doc:"Time after a start before the first run."`
	Method        string          `json:"method,omitempty" doc:"Method of the request (default GET)."`
	Path          string          `json:"path,omitempty" doc:"Path of the request (default /)."`
	Protocol      string          `json:"protocol,omitempty" doc:"http or https."`
	TLSServerName string          `json:"tls_server_name,omitempty" doc:"Name whose certificate is expected."`
	TLSSkipVerify bool            `json:"tls_skip_verify,omitempty" doc:"Accept any certificate."`
	Headers       map[string]Text `json:"headers,omitempty" doc:"Headers of the request."`
	RestartLimit  int             `json:"restart_limit,omitempty" note:"a failing check restarts no Machine"`
}

// TopCheck is a health check that belongs to no service.
type TopCheck struct {
	Processes []string `json:"processes,omitempty" doc:"Process groups that it belongs to (default the first one)."`
	Kind      string   `json:"kind,omitempty" doc:"informational or readiness."`
	Check
}

// MachineCheck is a program that tries a new Machine.
type MachineCheck struct {
	Image       string   `json:"image,omitempty" doc:"Image of the program (default that of the release)."`
	Command     Words    `json:"command,omitempty" doc:"Command, as words or one text."`
	Entrypoint  Words    `json:"entrypoint,omitempty" doc:"Entrypoint, as words or one text."`
	KillSignal  string   `json:"kill_signal,omitempty" doc:"Signal that asks it to end."`
	KillTimeout *Seconds `json:"kill_timeout,omitempty" doc:"Time that it may take (default 1m)."`
}

// VM is the size of Machines.
type VM struct {
	Size             string               `json:"size,omitempty" doc:"A preset such as shared-cpu-1x."`
	Memory           Memory               `json:"memory,omitempty" doc:"Memory, as \"1gb\" or 1024 (MiB)."`
	MemoryMB         int                  `json:"memory_mb,omitempty" doc:"Memory in MiB."`
	CPUs             int                  `json:"cpus,omitempty" doc:"Number of CPUs."`
	CPUKind          string               `json:"cpu_kind,omitempty" doc:"shared or performance."`
	Processes        []string             `json:"processes,omitempty" doc:"Process groups that have this size (default all others)."`
	PersistRootfs    hangar.PersistRootfs `json:"persist_rootfs,omitempty" doc:"never, restart or always."`
	KernelArgs       Words                `json:"kernel_args,omitempty" note:"the sandbox has no kernel command line"`
	HostDedicationID string               `json:"host_dedication_id,omitempty" note:"there are no dedicated hosts"`
	GPUs             any                  `json:"gpus,omitempty" refuse:"GPU"`
	GPUKind          any                  `json:"gpu_kind,omitempty" refuse:"GPU"`
}

// Mount is a volume of each Machine.
type Mount struct {
	Source            string   `json:"source,omitempty" doc:"Name of the volumes."`
	Destination       string   `json:"destination,omitempty" doc:"Path in the Machine, e.g. /data."`
	InitialSize       Gigas    `json:"initial_size,omitempty" doc:"Size of new volumes, as \"10gb\" or 10 (GiB)."`
	SnapshotRetention *int     `json:"snapshot_retention,omitempty" doc:"Days that snapshots of new volumes are kept."`
	Snapshots         *bool    `json:"scheduled_snapshots,omitempty" doc:"Whether new volumes have a snapshot each day."`
	ExtendThreshold   int      `json:"auto_extend_size_threshold,omitempty" doc:"Percent of use from which a volume grows."`
	ExtendIncrement   Gigas    `json:"auto_extend_size_increment,omitempty" doc:"By how much it grows."`
	ExtendLimit       Gigas    `json:"auto_extend_size_limit,omitempty" doc:"How large it may become."`
	Processes         []string `json:"processes,omitempty" doc:"Process groups that have the volume (default the first one)."`
}

// LocalFile is a file that is written before the program starts.
type LocalFile struct {
	GuestPath  string   `json:"guest_path,omitempty" doc:"Path in the Machine."`
	LocalPath  string   `json:"local_path,omitempty" doc:"File beside this one that has the content."`
	RawValue   string   `json:"raw_value,omitempty" doc:"Content, in base64."`
	SecretName string   `json:"secret_name,omitempty" doc:"Secret that has the content, in base64."`
	Mode       uint32   `json:"mode,omitempty" doc:"Mode of the file (default 0o644)."`
	Processes  []string `json:"processes,omitempty" doc:"Process groups that have the file (default the first one)."`
}

// Static says which files the edge serves.
type Static struct {
	GuestPath     string   `json:"guest_path,omitempty" doc:"Directory in the Machine, or in the bucket."`
	URLPrefix     string   `json:"url_prefix,omitempty" doc:"Prefix of the paths of requests."`
	TigrisBucket  string   `json:"tigris_bucket,omitempty" doc:"A public bucket that has the files."`
	IndexDocument string   `json:"index_document,omitempty" doc:"File of a directory, e.g. index.html."`
	Processes     []string `json:"processes,omitempty" doc:"Process groups that have the files (default the first one)."`
}

// Metrics says where the metrics of Machines are scraped.
type Metrics struct {
	Port      int      `json:"port,omitempty" doc:"Port of the program."`
	Path      string   `json:"path,omitempty" doc:"Path of the request (default /metrics)."`
	HTTPS     bool     `json:"https,omitempty" doc:"Ask by HTTPS."`
	Processes []string `json:"processes,omitempty" doc:"Process groups that have metrics there (default all)."`
}

// Restart says what follows the end of a program.
type Restart struct {
	Policy     string   `json:"policy,omitempty" doc:"always, never or on-failure."`
	MaxRetries int      `json:"retries,omitempty" doc:"How often in five minutes, for on-failure."`
	Processes  []string `json:"processes,omitempty" doc:"Process groups that it is about (default all)."`
}

// Experimental has another command, and former experiments of the public platform.
type Experimental struct {
	Cmd          Words `json:"cmd,omitempty" doc:"Command, instead of the image's."`
	Entrypoint   Words `json:"entrypoint,omitempty" doc:"Entrypoint, instead of the image's."`
	Exec         Words `json:"exec,omitempty" doc:"Entrypoint and command, instead of the image's."`
	AutoRollback bool  `json:"auto_rollback,omitempty" note:"use hangar deploy --rollback"`
	UseZstd      bool  `json:"use_zstd,omitempty" note:"images are built of a Dockerfile"`
	LazyLoad     bool  `json:"lazy_load_images,omitempty" note:"images are unpacked before a Machine starts"`
	EnableConsul any   `json:"enable_consul,omitempty" refuse:"Consul"`
	EnableEtcd   any   `json:"enable_etcd,omitempty" refuse:"Consul"`
	Autoscale    any   `json:"autoscale,omitempty" refuse:"rate control"`
	Attached     any   `json:"attached,omitempty" note:"secrets of extensions are set by themselves"`
}

// Groups returns the process groups of the file, sorted. There is at least one.
func (f *File) Groups() []string {
	if len(f.Processes) == 0 {
		return []string{DefaultGroup}
	}
	return slices.Sorted(maps.Keys(f.Processes))
}

// DefaultGroup returns the group of sections without processes.
func (f *File) DefaultGroup() string {
	groups := f.Groups()
	if slices.Contains(groups, DefaultGroup) {
		return DefaultGroup
	}
	return groups[0]
}

// Definition returns the file as the definition of a release.
func (f *File) Definition() (json.RawMessage, error) { return json.Marshal(f) }

// SetContent replaces the local path of the file with its content.
func (l *LocalFile) SetContent(content []byte) {
	l.LocalPath, l.RawValue = "", base64.StdEncoding.EncodeToString(content)
}

// NotOffered returns the reason why a command of the public platform, such as "postgres", is not offered,
// and what to do instead.
func NotOffered(command string) (text, instead string) {
	of := map[string]string{"postgres": noPostgres, "redis": noRedis, "billing": noBilling, "gpu": noGPU, "consul": noConsul}
	text, instead, _ = strings.Cut(of[command], "|")
	return text, instead
}
