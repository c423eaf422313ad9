// Package guest works out the processes of a Machine: which command, with which environment, as
// which user, and with which files of /etc.
//
// An image says one thing and the Machine's config may say another; they combine by the rules of
// the public platform, so that its images run unmodified. User and group names are looked up in the
// image's own /etc/passwd and /etc/group, read from the unpacked layers without following anything
// out of them.
//
// The package starts nothing and holds no state; its functions may be called from
// any goroutine. Running the command is the driver's part.
package guest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Image is an image's own config of its process.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // "NAME=value"
	User       string   // "user", "uid", "user:group" or "uid:gid"; empty: root
	WorkDir    string
	Layers     []string // unpacked, lowest first
}

// Process is a process of a Machine, fully resolved.
type Process struct {
	Args   []string
	Env    []string // "NAME=value", sorted
	Dir    string
	UID    uint32
	GID    uint32
	Groups []uint32
}

// Resolve combines an image with a Machine's config, and returns its processes, the main one
// first. secrets are those of the app; nil: none. public is the address from which the Machine
// reaches the internet over IPv6; the zero Addr: none. It answers CodeInvalid with
// ReasonBadConfig when there is nothing to run, when the command or its variables are too long,
// or when a user or a secret is unknown.
func Resolve(img Image, m *hangar.Machine, secrets map[string]string, public netip.Addr) ([]Process, error) {
	commands := m.Config.Commands()
	out := make([]Process, 0, len(commands))
	for i, c := range commands {
		p, err := resolve(img, m, c, secrets, public)
		if err != nil {
			if len(commands) > 1 {
				err = inProcess(m.Config.CommandPath(i), err)
			}
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// inProcess says which process an error is about.
func inProcess(at string, err error) error {
	if e, ok := errors.AsType[*hangar.Error](err); ok {
		in := *e
		in.Message = at + ": " + e.Message
		return &in
	}
	return fmt.Errorf("%s: %w", at, err)
}

func resolve(img Image, m *hangar.Machine, c hangar.ProcessConfig, secrets map[string]string, public netip.Addr) (Process, error) {
	args := arguments(img, overlaid(m.Config.Init, c))
	if len(args) == 0 {
		return Process{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"nothing to run: the image has neither ENTRYPOINT nor CMD; set config.init.exec, config.init.entrypoint or config.init.cmd")
	}
	account, err := lookupUser(img.Layers, cmp.Or(c.User, img.User))
	if err != nil {
		return Process{}, err
	}
	vars, err := variables(img, m, c, secrets)
	if err != nil {
		return Process{}, err
	}
	setDefault(vars, "PATH", defaultPath)
	setDefault(vars, "HOME", account.home)
	assume(vars, m)
	maps.Copy(vars, platformVariables(m, public))
	env := environment(vars)
	if err := executable(args, env); err != nil {
		return Process{}, err
	}
	return Process{
		Args: args, Env: env, Dir: cmp.Or(img.WorkDir, "/"), UID: account.uid, GID: account.gid, Groups: account.groups,
	}, nil
}

// executable says why a kernel would not execute anything with arguments and variables.
func executable(args, env []string) error {
	total := 0
	for i, arg := range args {
		if total += len(arg) + 1; len(arg) > hangar.MaxExecString {
			return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
				"the command cannot be executed: argument %d has %d bytes, more than the %d of which one can be", i, len(arg), hangar.MaxExecString)
		}
	}
	for _, v := range env {
		if total += len(v) + 1; len(v) > hangar.MaxExecString {
			name, _, _ := strings.Cut(v, "=")
			return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
				"the command cannot be executed: the variable %.100s has %d bytes with its name, more than the %d of which one can be", name, len(v), hangar.MaxExecString)
		}
	}
	if total > hangar.MaxExecBytes {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"the command cannot be executed: its arguments and variables have %d bytes, more than the %d that are allowed", total, hangar.MaxExecBytes)
	}
	return nil
}

// overlaid merges a process's own command with the Machine's. As in init itself, exec replaces
// everything; a process with only a part of the command does not use an exec of the Machine.
func overlaid(init hangar.Init, c hangar.ProcessConfig) hangar.Init {
	if len(c.Exec)+len(c.Entrypoint)+len(c.Cmd) == 0 {
		return init
	}
	init.Exec = c.Exec
	if len(c.Entrypoint) > 0 {
		init.Entrypoint = c.Entrypoint
	}
	if len(c.Cmd) > 0 {
		init.Cmd = c.Cmd
	}
	return init
}

// arguments follows the platform's rule: exec replaces everything; otherwise the
// entrypoint is followed by the command, and the config's replace the image's one
// by one.
func arguments(img Image, init hangar.Init) []string {
	if len(init.Exec) > 0 {
		return init.Exec
	}
	entrypoint, cmd := img.Entrypoint, img.Cmd
	if len(init.Entrypoint) > 0 {
		entrypoint = init.Entrypoint
	}
	if len(init.Cmd) > 0 {
		cmd = init.Cmd
	}
	return slices.Concat(entrypoint, cmd)
}

// defaultPath is the PATH of images that do not set one, as container engines
// have it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// variables lays over the image's variables those of the config, of the app's secrets
// and of the process, in this order.
func variables(img Image, m *hangar.Machine, c hangar.ProcessConfig, secrets map[string]string) (map[string]string, error) {
	vars := make(map[string]string)
	for _, v := range img.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			vars[name] = value
		}
	}
	maps.Copy(vars, m.Config.Env)
	if !c.IgnoreAppSecrets {
		maps.Copy(vars, secrets)
	}
	for _, e := range c.EnvFrom {
		vars[e.EnvVar] = field(m, e.FieldRef)
	}
	maps.Copy(vars, c.Env)
	for _, s := range c.Secrets {
		value, ok := secrets[s.Secret()]
		if !ok {
			return nil, noSecret(s.Secret(), "the variable "+s.EnvVar)
		}
		vars[s.EnvVar] = value
	}
	if m.Config.Init.TTY && vars["TERM"] == "" {
		vars["TERM"] = "xterm"
	}
	return vars, nil
}

// setDefault sets a variable unless it is set.
func setDefault(vars map[string]string, name, value string) {
	if _, ok := vars[name]; !ok {
		vars[name] = value
	}
}

// environment is the variables as a process gets them.
func environment(vars map[string]string) []string {
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func noSecret(name, forWhat string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "the app has no secret %q, which %s is made of", name, forWhat)
}

// field returns the property of the Machine that ref names.
func field(m *hangar.Machine, ref hangar.FieldRef) string {
	switch ref {
	case hangar.FieldID:
		return string(m.ID)
	case hangar.FieldVersion:
		return string(m.InstanceID)
	case hangar.FieldAppName:
		return string(m.App)
	case hangar.FieldPrivateIP:
		return m.PrivateIP.String()
	case hangar.FieldRegion:
		return string(m.Region)
	case hangar.FieldImage:
		return imageText(m)
	default:
		return ""
	}
}

// imageText names the image without its digest.
func imageText(m *hangar.Machine) string {
	image := m.ImageRef.Registry + "/" + m.ImageRef.Repository
	if m.ImageRef.Tag != "" {
		image += ":" + m.ImageRef.Tag
	}
	return image
}

// platformVariables are those that the platform sets, each under both names.
func platformVariables(m *hangar.Machine, public netip.Addr) map[string]string {
	vars := map[string]string{
		"APP_NAME":        string(m.App),
		"MACHINE_ID":      string(m.ID),
		"ALLOC_ID":        string(m.ID),
		"MACHINE_VERSION": string(m.InstanceID),
		"REGION":          string(m.Region),
		"IMAGE_REF":       imageText(m),
		"PRIVATE_IP":      m.PrivateIP.String(),
	}
	if g := m.Config.Guest; g != nil {
		vars["VM_MEMORY_MB"] = strconv.Itoa(g.Memory())
	}
	for _, key := range []string{hangar.MetadataProcessGroup.Neutral, hangar.MetadataProcessGroup.Original} {
		if group := m.Config.Metadata[key]; group != "" {
			vars["PROCESS_GROUP"] = group
		}
	}
	if public.IsValid() {
		vars["PUBLIC_IP"] = public.String()
	}
	both := make(map[string]string, 2*len(vars))
	for name, value := range vars {
		both[hangar.GuestEnvPrefixes.Neutral+name] = value
		both[hangar.GuestEnvPrefixes.Original+name] = value
	}
	return both
}
