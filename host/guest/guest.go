// Package guest works out what a Machine's main process looks like from inside:
// which command, with which environment, as whom, and which files of /etc it
// finds.
//
// An image says one thing and the Machine's config may say another; the rules by
// which they combine are those of the public platform, so that its images run
// unmodified. User and group names are looked up in the image's own /etc/passwd
// and /etc/group, read from the unpacked layers without following anything out of
// them.
//
// The package starts nothing and holds no state; its functions may be called from
// any goroutine. Running the command is the driver's part.
package guest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Image is what an image says of its process.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // "NAME=value"
	User       string   // "user", "uid", "user:group" or "uid:gid"; empty: root
	WorkDir    string
	Layers     []string // unpacked, lowest first
}

// Process is the main process of a Machine, fully resolved.
type Process struct {
	Args   []string
	Env    []string // "NAME=value", sorted
	Dir    string
	UID    uint32
	GID    uint32
	Groups []uint32
}

// Resolve combines an image with a Machine's config. It answers CodeInvalid with
// ReasonBadConfig when there is nothing to run or the user is unknown.
func Resolve(img Image, m *hangar.Machine) (Process, error) {
	args := arguments(img, m.Config.Init)
	if len(args) == 0 {
		return Process{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"nothing to run: the image has neither ENTRYPOINT nor CMD; set config.init.exec, config.init.entrypoint or config.init.cmd")
	}
	account, err := lookupUser(img.Layers, img.User)
	if err != nil {
		return Process{}, err
	}
	dir := img.WorkDir
	if dir == "" {
		dir = "/"
	}
	return Process{
		Args: args, Env: environment(img, m, account.home), Dir: dir,
		UID: account.uid, GID: account.gid, Groups: account.groups,
	}, nil
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

// environment lays the config's variables over the image's and the platform's
// over both.
func environment(img Image, m *hangar.Machine, home string) []string {
	vars := map[string]string{"PATH": defaultPath, "HOME": home}
	for _, v := range img.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			vars[name] = value
		}
	}
	maps.Copy(vars, m.Config.Env)
	if m.Config.Init.TTY && vars["TERM"] == "" {
		vars["TERM"] = "xterm"
	}
	for name, value := range platformVariables(m) {
		vars[hangar.GuestEnvPrefixes.Neutral+name] = value
		vars[hangar.GuestEnvPrefixes.Original+name] = value
	}
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func platformVariables(m *hangar.Machine) map[string]string {
	image := m.ImageRef.Registry + "/" + m.ImageRef.Repository
	if m.ImageRef.Tag != "" {
		image += ":" + m.ImageRef.Tag
	}
	vars := map[string]string{
		"APP_NAME":        string(m.App),
		"MACHINE_ID":      string(m.ID),
		"ALLOC_ID":        string(m.ID),
		"MACHINE_VERSION": string(m.InstanceID),
		"REGION":          string(m.Region),
		"IMAGE_REF":       image,
		"PRIVATE_IP":      m.PrivateIP.String(),
	}
	if g := m.Config.Guest; g != nil {
		vars["VM_MEMORY_MB"] = strconv.Itoa(g.MemoryMB)
	}
	for _, key := range []string{hangar.MetadataProcessGroup.Neutral, hangar.MetadataProcessGroup.Original} {
		if group := m.Config.Metadata[key]; group != "" {
			vars["PROCESS_GROUP"] = group
		}
	}
	return vars
}

// EtcHosts is the Machine's /etc/hosts.
func EtcHosts(m *hangar.Machine) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	// What services over UDP bind to. Here any address will do.
	b.WriteString("0.0.0.0\tfly-global-services platform-global-services\n")
	if m.PrivateIP.IsValid() {
		fmt.Fprintf(&b, "%s\t%s fly-local-6pn platform-local-6pn\n", m.PrivateIP, m.ID)
	}
	return b.String()
}

// ResolvConf is the Machine's /etc/resolv.conf: the config's name servers, or
// else those given.
func ResolvConf(m *hangar.Machine, nameservers []string) string {
	var b strings.Builder
	if dns := m.Config.DNS; dns != nil {
		if len(dns.Nameservers) > 0 {
			nameservers = dns.Nameservers
		}
		if len(dns.Searches) > 0 {
			b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
		}
	}
	for _, ns := range nameservers {
		b.WriteString("nameserver " + ns + "\n")
	}
	return b.String()
}
