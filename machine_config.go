package hangar

// MachineConfig is the wanted state of a Machine, as its owner sent it. Unknown properties are kept and
// echoed; see ParseMachineConfig.
type MachineConfig struct {
	Image       string            `json:"image"` // a reference with a tag, a digest or both; see ImageName
	Env         map[string]string `json:"env,omitempty"`
	Init        Init              `json:"init"`
	Guest       *Guest            `json:"guest,omitempty"` // never nil after ParseMachineConfig
	Size        string            `json:"size,omitempty"`  // a preset, instead of Guest
	Metadata    map[string]string `json:"metadata,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Services    []Service         `json:"services,omitempty"`
	Checks      map[string]Check  `json:"checks,omitempty"`
	Metrics     *Metrics          `json:"metrics,omitempty"`
	Statics     []Static          `json:"statics,omitempty"`
	Files       []File            `json:"files,omitempty"`
	Processes   []ProcessConfig   `json:"processes,omitempty"`  // see Commands
	Containers  []Container       `json:"containers,omitempty"` // at most one
	Schedule    Schedule          `json:"schedule,omitempty"`
	AutoDestroy bool              `json:"auto_destroy,omitempty"`
	Restart     *RestartConfig    `json:"restart,omitempty"`
	StopConfig  *StopConfig       `json:"stop_config,omitempty"`
	Standbys    []MachineID       `json:"standbys,omitempty"` // the Machines for which this one stands by; see StandsBy
	DNS         *DNSConfig        `json:"dns,omitempty"`
	Rootfs      *RootfsConfig     `json:"rootfs,omitempty"`
	// DisableMachineAutostart is an older form of Service.Autostart.
	DisableMachineAutostart *bool `json:"disable_machine_autostart,omitempty"`
	// PersistRootfs and SwapSizeMB are older places of Rootfs.Persist and
	// Init.SwapSizeMB; see Persist and SwapMB.
	PersistRootfs PersistRootfs `json:"persist_rootfs,omitempty"`
	SwapSizeMB    int           `json:"swap_size_mb,omitempty"`

	// sent is the document as the owner sent it, normalised; nil for a config
	// that was built in Go. See MarshalJSON.
	sent *sentConfig
}

// Init says what runs in the Machine. Exec replaces everything; otherwise
// Entrypoint (or the image's) is followed by Cmd (or the image's).
type Init struct {
	Exec       []string `json:"exec,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	TTY        bool     `json:"tty,omitempty"`
	SwapSizeMB int      `json:"swap_size_mb,omitempty"`
	KernelArgs []string `json:"kernel_args,omitempty"` // accepted; the sandbox has no kernel command line
}

// Guest is the size of a Machine.
type Guest struct {
	CPUKind          string        `json:"cpu_kind,omitempty"` // "shared" or "performance"
	CPUs             int           `json:"cpus,omitempty"`
	MemoryMB         int           `json:"memory_mb,omitempty"`     // MiB, a multiple of 256
	MaxMemoryMB      int           `json:"max_memory_mb,omitempty"` // see Memory
	GPUs             int           `json:"gpus,omitempty"`
	GPUKind          string        `json:"gpu_kind,omitempty"`
	HostDedicationID string        `json:"host_dedication_id,omitempty"`
	PersistRootfs    PersistRootfs `json:"persist_rootfs,omitempty"`
	KernelArgs       []string      `json:"kernel_args,omitempty"`
}

// RestartPolicy says what follows when the main process ends unasked.
type RestartPolicy string

// The restart policies.
const (
	RestartNo        RestartPolicy = "no"
	RestartOnFailure RestartPolicy = "on-failure" // only for an exit code other than 0, at most MaxRetries times
	RestartAlways    RestartPolicy = "always"
)

// DefaultMaxRetries bounds the restarts of RestartOnFailure within five minutes.
const DefaultMaxRetries = 10

// RestartConfig is the restart policy of a Machine. A Machine without one has
// RestartOnFailure with DefaultMaxRetries.
type RestartConfig struct {
	Policy     RestartPolicy `json:"policy,omitempty"`
	MaxRetries int           `json:"max_retries,omitempty"`
}

// StopConfig says how a Machine is asked to stop: by default SIGINT and five
// seconds before SIGKILL.
type StopConfig struct {
	Signal  *Signal   `json:"signal,omitempty"`
	Timeout *Duration `json:"timeout,omitempty"`
}

// PersistRootfs says when the root file system is reset to the image's.
type PersistRootfs string

// The values of PersistRootfs.
const (
	PersistNever   PersistRootfs = "never"   // at every cold start from stopped
	PersistRestart PersistRootfs = "restart" // at every update only
	PersistAlways  PersistRootfs = "always"  // never reset
)

// RootfsConfig configures the root file system. It is the newer place of persist_rootfs.
type RootfsConfig struct {
	Persist PersistRootfs `json:"persist,omitempty"`
	SizeGB  int           `json:"size_gb,omitempty"`
}

// Mount attaches a volume at an absolute path.
type Mount struct {
	Volume                 string `json:"volume"`
	Path                   string `json:"path"`
	Name                   string `json:"name,omitempty"`
	Encrypted              bool   `json:"encrypted"`
	SizeGB                 int    `json:"size_gb,omitempty"`
	ExtendThresholdPercent int    `json:"extend_threshold_percent,omitempty"`
	AddSizeGB              int    `json:"add_size_gb,omitempty"`
	SizeGBLimit            int    `json:"size_gb_limit,omitempty"`
}

// Service is a port of the Machine that the edge serves.
type Service struct {
	Protocol           string `json:"protocol,omitempty"` // "tcp" or "udp"
	InternalPort       int    `json:"internal_port"`
	Autostart          *bool  `json:"autostart,omitempty"`
	Autostop           any    `json:"autostop,omitempty"` // false, true or "suspend"
	MinMachinesRunning *int   `json:"min_machines_running,omitempty"`
	// AutostopAfter is how long a Machine has to be idle before it is stopped; nil: the operator's
	// default. Only hangar has this property.
	AutostopAfter *Duration           `json:"autostop_after,omitempty"`
	Ports         []ServicePort       `json:"ports,omitempty"`
	Concurrency   *ServiceConcurrency `json:"concurrency,omitempty"`
	Checks        []Check             `json:"checks,omitempty"`
	// ForceInstanceKey and ForceInstanceDescription come from older clients and are only stored.
	ForceInstanceKey         *string `json:"force_instance_key,omitempty"`
	ForceInstanceDescription *string `json:"force_instance_description,omitempty"`
}

// ServicePort is a public port, or a range of them, and how its traffic is handled.
type ServicePort struct {
	Port       int                `json:"port,omitempty"`
	StartPort  int                `json:"start_port,omitempty"`
	EndPort    int                `json:"end_port,omitempty"`
	Handlers   []string           `json:"handlers,omitempty"`
	ForceHTTPS bool               `json:"force_https,omitempty"`
	TLS        *TLSOptions        `json:"tls_options,omitempty"`
	HTTP       *HTTPOptions       `json:"http_options,omitempty"`
	ProxyProto *ProxyProtoOptions `json:"proxy_proto_options,omitempty"`
}

// TLSOptions are those of the handler "tls".
type TLSOptions struct {
	ALPN              []string `json:"alpn,omitempty"`
	Versions          []string `json:"versions,omitempty"` // e.g. "TLSv1.2"
	DefaultSelfSigned *bool    `json:"default_self_signed,omitempty"`
}

// HTTPOptions are those of the handler "http". Timeouts are in seconds.
type HTTPOptions struct {
	Compress           *bool                `json:"compress,omitempty"`
	H2Backend          *bool                `json:"h2_backend,omitempty"`
	IdleTimeout        *uint32              `json:"idle_timeout,omitempty"`
	HeadersReadTimeout *uint32              `json:"headers_read_timeout,omitempty"`
	Response           *HTTPResponseOptions `json:"response,omitempty"`
	ReplayCache        []ReplayCache        `json:"replay_cache,omitempty"`
}

// HTTPResponseOptions change the answers of the Machine.
type HTTPResponseOptions struct {
	Headers  map[string]any `json:"headers,omitempty"` // a text, a list of texts, or false to remove it
	Pristine *bool          `json:"pristine,omitempty"`
}

// ReplayCache says for which requests the edge remembers where they were replayed.
type ReplayCache struct {
	PathPrefix  string `json:"path_prefix"`
	TTLSeconds  int    `json:"ttl_seconds"`
	Type        string `json:"type"` // "cookie" or "header"
	Name        string `json:"name"`
	AllowBypass bool   `json:"allow_bypass,omitempty"`
}

// ProxyProtoOptions are those of the handler "proxy_proto".
type ProxyProtoOptions struct {
	Version string `json:"version,omitempty"` // "v1", "v2", or only the digit
}

// ServiceConcurrency bounds what the edge sends to one Machine.
type ServiceConcurrency struct {
	Type      string `json:"type,omitempty"` // "connections" or "requests"
	SoftLimit int    `json:"soft_limit,omitempty"`
	HardLimit int    `json:"hard_limit,omitempty"`
}

// Check is a health check.
type Check struct {
	Type          string    `json:"type,omitempty"` // "tcp" or "http"
	Port          int       `json:"port,omitempty"`
	Kind          string    `json:"kind,omitempty"`
	Interval      *Duration `json:"interval,omitempty"`
	Timeout       *Duration `json:"timeout,omitempty"`
	GracePeriod   *Duration `json:"grace_period,omitempty"`
	Method        string    `json:"method,omitempty"`
	Path          string    `json:"path,omitempty"`
	Protocol      string    `json:"protocol,omitempty"`
	TLSServerName string    `json:"tls_server_name,omitempty"`
	TLSSkipVerify bool      `json:"tls_skip_verify,omitempty"`
	Headers       []Header  `json:"headers,omitempty"` // read from an object, too
}

// Header is a header of a check's request.
type Header struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Metrics is where the metrics of a Machine are scraped.
type Metrics struct {
	Port  int    `json:"port"`
	Path  string `json:"path"`
	HTTPS bool   `json:"https,omitempty"`
}

// Static maps a URL prefix to files of the Machine.
type Static struct {
	GuestPath     string `json:"guest_path"`
	URLPrefix     string `json:"url_prefix"`
	TigrisBucket  string `json:"tigris_bucket,omitempty"` // a public bucket with the files; empty: they are the Machine's
	IndexDocument string `json:"index_document,omitempty"`
}

// File is written into the Machine before it boots. Its content is RawValue, or the value of a secret,
// which holds it in base64.
type File struct {
	GuestPath  string `json:"guest_path"`
	RawValue   []byte `json:"raw_value,omitempty"` // base64 on the wire
	SecretName string `json:"secret_name,omitempty"`
	// ImageConfig is not offered.
	ImageConfig string `json:"image_config,omitempty"`
	Mode        uint32 `json:"mode,omitempty"` // 0: 0644
}
