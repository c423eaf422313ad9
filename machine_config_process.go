package hangar

import (
	"slices"
	"strconv"
	"strings"
)

// ProcessConfig is one of the processes of a Machine. Init, and then the image, supply what it leaves
// out. When one of several processes ends, the others are stopped, and the Machine has the exit status
// of the first.
type ProcessConfig struct {
	Exec       []string          `json:"exec,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	User       string            `json:"user,omitempty"` // as in an image: "user", "uid" or with ":group"
	Env        map[string]string `json:"env,omitempty"`
	EnvFrom    []EnvFrom         `json:"env_from,omitempty"`
	Secrets    []ProcessSecret   `json:"secrets,omitempty"`
	// IgnoreAppSecrets leaves out the app's secrets that are not in Secrets.
	IgnoreAppSecrets bool `json:"ignore_app_secrets,omitempty"`
}

// EnvFrom is a variable whose value is a property of the Machine.
type EnvFrom struct {
	EnvVar   string   `json:"env_var"`
	FieldRef FieldRef `json:"field_ref"`
}

// FieldRef names a property of a Machine.
type FieldRef string

// The properties that FieldRef knows.
const (
	FieldID        FieldRef = "id"
	FieldVersion   FieldRef = "version" // the InstanceID
	FieldAppName   FieldRef = "app_name"
	FieldPrivateIP FieldRef = "private_ip"
	FieldRegion    FieldRef = "region"
	FieldImage     FieldRef = "image"
)

var fieldRefs = []FieldRef{FieldID, FieldVersion, FieldAppName, FieldPrivateIP, FieldRegion, FieldImage}

// ProcessSecret is a variable whose value is a secret of the app.
type ProcessSecret struct {
	EnvVar string `json:"env_var"`
	Name   string `json:"name,omitempty"` // of the secret; empty: as EnvVar
}

// Secret is the name of the secret.
func (s ProcessSecret) Secret() string {
	if s.Name != "" {
		return s.Name
	}
	return s.EnvVar
}

// Container is another way to describe what runs in a Machine. A Machine has at most one, whose
// settings apply to the Machine.
type Container struct {
	Name       string            `json:"name,omitempty"`
	Image      string            `json:"image,omitempty"` // empty: the Machine's
	Exec       []string          `json:"exec,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	User       string            `json:"user,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	EnvFrom    []EnvFrom         `json:"env_from,omitempty"`
	Secrets    []ProcessSecret   `json:"secrets,omitempty"`
	Files      []File            `json:"files,omitempty"`
	Restart    *RestartConfig    `json:"restart,omitempty"`
	Stop       *StopConfig       `json:"stop,omitempty"`

	// These relate several containers to each other, or are not offered.
	DependsOn    []any `json:"depends_on,omitempty"`
	Healthchecks []any `json:"healthchecks,omitempty"`
	Mounts       []any `json:"mounts,omitempty"`
}

func (k *Container) process() ProcessConfig {
	return ProcessConfig{
		Exec: k.Exec, Entrypoint: k.Entrypoint, Cmd: k.Cmd, User: k.User, Env: k.Env, EnvFrom: k.EnvFrom, Secrets: k.Secrets,
	}
}

// container returns the only container, or nil.
func (c *MachineConfig) container() *Container {
	if len(c.Containers) == 1 {
		return &c.Containers[0]
	}
	return nil
}

// ImageName is the reference of the image that the Machine runs.
func (c *MachineConfig) ImageName() string {
	if k := c.container(); k != nil && k.Image != "" {
		return k.Image
	}
	return c.Image
}

// Commands returns the processes of the Machine, at least one. Without Processes and Containers, that
// is an empty ProcessConfig.
func (c *MachineConfig) Commands() []ProcessConfig {
	switch k := c.container(); {
	case k != nil:
		return []ProcessConfig{k.process()}
	case len(c.Processes) > 0:
		return c.Processes
	default:
		return []ProcessConfig{{}}
	}
}

// CommandPath is the JSON path of the process that Commands returns at index i.
func (c *MachineConfig) CommandPath(i int) string {
	if c.container() != nil {
		return "config.containers[0]"
	}
	return "config.processes[" + strconv.Itoa(i) + "]"
}

// WrittenFiles returns the files that are written before a boot. Later ones overwrite earlier ones.
func (c *MachineConfig) WrittenFiles() []File {
	if k := c.container(); k != nil {
		return slices.Concat(c.Files, k.Files)
	}
	return c.Files
}

// validateProcesses checks what runs in the Machine.
func (c *MachineConfig) validateProcesses() error {
	if len(c.Processes) > MaxProcesses {
		return badConfig("config.processes", "has %d entries, more than the %d that are allowed", len(c.Processes), MaxProcesses)
	}
	if len(c.Processes) > 1 && c.Init.TTY {
		return unsupported("config.init.tty", "a terminal for several processes is not offered")
	}
	if err := c.validateContainers(); err != nil {
		return err
	}
	if len(c.Processes) == 0 && len(c.Containers) == 0 {
		return nil
	}
	for i, p := range c.Commands() {
		if err := p.validate(c.CommandPath(i)); err != nil {
			return err
		}
	}
	return nil
}

func (p *ProcessConfig) validate(at string) error {
	if err := validateCommand(at, p.Exec, p.Entrypoint, p.Cmd); err != nil {
		return err
	}
	if strings.ContainsFunc(p.User, func(r rune) bool { return r <= ' ' || r == 0x7f }) || len(p.User) > maxUserBytes {
		return badConfig(at+".user", "%q is not a user", p.User)
	}
	if err := validateEnv(at+".env", p.Env); err != nil {
		return err
	}
	for i, e := range p.EnvFrom {
		at := at + ".env_from[" + strconv.Itoa(i) + "]"
		switch {
		case !validVariable(e.EnvVar):
			return badConfig(at+".env_var", "%q is not the name of a variable", e.EnvVar)
		case !slices.Contains(fieldRefs, e.FieldRef):
			return badConfig(at+".field_ref", "%q is not one of %v", e.FieldRef, fieldRefs)
		}
	}
	for i, s := range p.Secrets {
		at := at + ".secrets[" + strconv.Itoa(i) + "]"
		switch {
		case !validVariable(s.EnvVar):
			return badConfig(at+".env_var", "%q is not the name of a variable", s.EnvVar)
		case strings.ContainsFunc(s.Name, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			return badConfig(at+".name", "%q is not the name of a secret", s.Name)
		}
	}
	return nil
}

// validVariable reports whether a shell could use the variable.
func validVariable(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && len(name) <= maxVariableBytes
}

func (c *MachineConfig) validateContainers() error {
	k := c.container()
	const at = "config.containers[0]"
	switch {
	case k == nil:
		return nil
	case len(c.Processes) > 0:
		return badConfig("config.processes", "stands beside config.containers; give one of the two")
	case len(k.DependsOn) > 0:
		return badConfig(at+".depends_on", "names other containers, of which there are none")
	case len(k.Healthchecks) > 0:
		return unsupported(at+".healthchecks", "health checks of containers, as opposed to config.checks, are not offered")
	case len(k.Mounts) > 0:
		return unsupported(at+".mounts", "volumes of containers are not offered")
	}
	if err := validateFiles(at+".files", k.Files); err != nil {
		return err
	}
	if err := validateRestart(at+".restart", k.Restart); err != nil {
		return err
	}
	return validateStop(at+".stop", k.Stop)
}
