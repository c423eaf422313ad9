package appconfig

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

// Defaults of keys.
const (
	DefaultPort                  = 8080
	DefaultReleaseCommandTimeout = 5 * time.Minute
	DefaultMachineCheckTimeout   = time.Minute
	DefaultWaitTimeout           = 5 * time.Minute
	DefaultUnavailable           = Fraction(0.33)

	httpPort  = 80
	httpsPort = 443
)

// Group describes the Machines of a process group.
type Group struct {
	Name string
	// Count is the number of Machines; -1: the file does not have it.
	Count    int
	Standbys int
	// Config is the config of each Machine, without the metadata of a release and the ids of volumes.
	Config hangar.MachineConfig
	Mounts []Mount // in the order of Config.Mounts
	Checks []MachineCheck
}

// Sources provide what a file refers to.
type Sources struct {
	Image string // of the release; empty: build.image
	// ReadFile reads a file whose path is relative to the file of the App; nil: it cannot be read.
	ReadFile func(name string) ([]byte, error)
}

// check finds errors other than those of keys and their types.
func (f *File) check(c *checker) {
	groups := f.Groups()
	f.checkSections(c, groups)
	f.checkNumbers(c, groups)
	if len(c.errors) > 0 {
		return
	}
	// The platform's own checks, with placeholders for what only a deploy knows.
	for _, name := range groups {
		g, err := f.Group(name, Sources{Image: "image", ReadFile: func(string) ([]byte, error) { return nil, nil }})
		if err == nil {
			err = g.validate()
		}
		if err != nil {
			c.find(&c.errors, "", fmt.Sprintf("process group %s: %s", name, err), "")
		}
	}
}

// checkSections finds sections for unknown process groups, and mounts that lack a key.
func (f *File) checkSections(c *checker, groups []string) {
	known := func(path string, names []string) {
		for i, name := range names {
			if !slices.Contains(groups, name) {
				c.find(&c.errors, fmt.Sprintf("%s.processes[%d]", path, i), fmt.Sprintf("there is no process group %q", name), "one of "+strings.Join(groups, ", "))
			}
		}
	}
	if f.HTTPService != nil {
		known("http_service", f.HTTPService.Processes)
	}
	for i := range f.Services {
		known(fmt.Sprintf("services[%d]", i), f.Services[i].Processes)
	}
	for name, k := range f.Checks {
		known("checks."+name, k.Processes)
	}
	for i := range f.VM {
		known(indexed(c, "vm", i), f.VM[i].Processes)
	}
	for i := range f.Mounts {
		at := indexed(c, "mounts", i)
		known(at, f.Mounts[i].Processes)
		if m := f.Mounts[i]; m.Source == "" || m.Destination == "" {
			c.find(&c.errors, at, "needs source and destination", "")
		}
	}
	for i := range f.Metrics {
		known(indexed(c, "metrics", i), f.Metrics[i].Processes)
	}
	for i := range f.Restart {
		known(indexed(c, "restart", i), f.Restart[i].Processes)
	}
	for i := range f.Files {
		known(fmt.Sprintf("files[%d]", i), f.Files[i].Processes)
	}
	for i := range f.Statics {
		known(fmt.Sprintf("statics[%d]", i), f.Statics[i].Processes)
	}
}

// checkNumbers finds wrong numbers of Machines.
func (f *File) checkNumbers(c *checker, groups []string) {
	for section, numbers := range map[string]map[string]int{"scale": f.Scale, "standbys": f.Standbys} {
		for name, n := range numbers {
			switch {
			case !slices.Contains(groups, name):
				c.find(&c.errors, section+"."+name, fmt.Sprintf("there is no process group %q", name), "one of "+strings.Join(groups, ", "))
			case n < 0 || n > MaxMachines:
				c.find(&c.errors, section+"."+name, fmt.Sprintf("%d is not from 0 to %d", n, MaxMachines), "")
			}
		}
	}
}

// MaxMachines bounds the Machines of a group.
const MaxMachines = 1000

// indexed returns the path of element i of a section, which is a table or an array of tables.
func indexed(c *checker, section string, i int) string {
	if path := fmt.Sprintf("%s[%d]", section, i); c.lines[path] != 0 {
		return path
	}
	return section
}

// validate checks the config as the platform does.
func (g *Group) validate() error {
	config := g.Config
	config.Mounts = slices.Clone(config.Mounts)
	for i := range config.Mounts {
		config.Mounts[i].Volume = fmt.Sprintf("vol_%016d", i)
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	_, err = hangar.ParseMachineConfig(raw)
	return err
}

// in reports whether a section with these processes is for a group.
func (f *File) in(processes []string, group string) bool {
	if len(processes) == 0 {
		return group == f.DefaultGroup()
	}
	return slices.Contains(processes, group)
}

// Group returns the description of a process group's Machines. It fails for a file that cannot be read and
// for a command that cannot be split.
func (f *File) Group(name string, from Sources) (Group, error) {
	g := Group{Name: name, Count: -1, Standbys: f.Standbys[name]}
	if n, ok := f.Scale[name]; ok {
		g.Count = n
	}
	config, err := f.basis(from.Image)
	if err != nil {
		return g, err
	}
	if command := f.Processes[name]; command != "" {
		if config.Init.Cmd, err = cmdline.Split(command); err != nil {
			return g, fmt.Errorf("processes.%s: %w", name, err)
		}
	}
	if config.Guest, config.PersistRootfs, err = f.guest(name); err != nil {
		return g, err
	}
	f.addServices(&g, &config)
	f.addChecks(&g, &config)
	f.addMounts(&g, &config)
	for _, s := range f.Statics {
		if f.in(s.Processes, name) {
			config.Statics = append(config.Statics, hangar.Static{
				GuestPath: s.GuestPath, URLPrefix: s.URLPrefix, TigrisBucket: s.TigrisBucket, IndexDocument: s.IndexDocument,
			})
		}
	}
	for _, m := range f.Metrics {
		if len(m.Processes) == 0 || slices.Contains(m.Processes, name) {
			config.Metrics = &hangar.Metrics{Port: m.Port, Path: cmp.Or(m.Path, "/metrics"), HTTPS: m.HTTPS}
		}
	}
	for _, r := range f.Restart {
		if len(r.Processes) == 0 || slices.Contains(r.Processes, name) {
			policy := hangar.RestartPolicy(r.Policy)
			if policy == "never" {
				policy = hangar.RestartNo
			}
			config.Restart = &hangar.RestartConfig{Policy: policy, MaxRetries: r.MaxRetries}
		}
	}
	if err := f.addFiles(&config, name, from); err != nil {
		return g, err
	}
	g.Config = config
	return g, nil
}

func (f *File) addChecks(g *Group, config *hangar.MachineConfig) {
	for key, k := range f.Checks {
		if !f.in(k.Processes, g.Name) {
			continue
		}
		check := k.Check.config(cmp.Or(k.Type, "http"))
		check.Kind = k.Kind
		if config.Checks == nil {
			config.Checks = map[string]hangar.Check{}
		}
		config.Checks[key] = check
	}
}

func (f *File) addMounts(g *Group, config *hangar.MachineConfig) {
	for _, m := range f.Mounts {
		if !f.in(m.Processes, g.Name) {
			continue
		}
		g.Mounts = append(g.Mounts, m)
		config.Mounts = append(config.Mounts, hangar.Mount{
			Path: m.Destination, ExtendThresholdPercent: m.ExtendThreshold, AddSizeGB: int(m.ExtendIncrement), SizeGBLimit: int(m.ExtendLimit),
		})
	}
}

// basis returns what the configs of all groups and of the release command have in common.
func (f *File) basis(image string) (hangar.MachineConfig, error) {
	config := hangar.MachineConfig{Image: image}
	if config.Image == "" && f.Build != nil {
		config.Image = f.Build.Image
	}
	if len(f.Env) > 0 || f.PrimaryRegion != "" {
		config.Env = map[string]string{}
	}
	if f.PrimaryRegion != "" {
		config.Env["PRIMARY_REGION"] = string(f.PrimaryRegion)
	}
	for name, value := range f.Env {
		config.Env[name] = string(value)
	}
	if e := f.Experimental; e != nil {
		config.Init.Cmd, config.Init.Entrypoint, config.Init.Exec = e.Cmd, e.Entrypoint, e.Exec
	}
	config.Init.SwapSizeMB = f.SwapSizeMB
	stop, err := stopConfig(f.KillSignal, f.KillTimeout)
	if err != nil {
		return config, fmt.Errorf("kill_signal: %w", err)
	}
	config.StopConfig = stop
	return config, nil
}

// stopConfig returns how a program is stopped, or nil for the default.
func stopConfig(signal string, timeout *Seconds) (*hangar.StopConfig, error) {
	if signal == "" && timeout == nil {
		return nil, nil //nolint:nilnil // the platform's default
	}
	var stop hangar.StopConfig
	if signal != "" {
		s, err := hangar.ParseSignal(signal)
		if err != nil {
			return nil, err
		}
		stop.Signal = &s
	}
	if timeout != nil {
		d := hangar.Duration(*timeout)
		stop.Timeout = &d
	}
	return &stop, nil
}

// vm returns the section about the size of a group: the one that names the group, or else the one for all.
func (f *File) vm(name string) *VM {
	var found *VM
	for i := range f.VM {
		vm := &f.VM[i]
		if slices.Contains(vm.Processes, name) {
			found = vm
			break
		}
		if len(vm.Processes) == 0 && found == nil {
			found = vm
		}
	}
	if found == nil {
		found = &VM{}
	}
	return found
}

// guest returns the size of a group's Machines.
func (f *File) guest(name string) (*hangar.Guest, hangar.PersistRootfs, error) {
	vm := f.vm(name)
	guest, err := vm.guest()
	return guest, vm.PersistRootfs, err
}

// Resize changes the size of the Machines of one group. It returns an error if the size is invalid.
func (f *File) Resize(group string, change func(*VM)) error {
	made := *f.vm(group)
	made.Processes = []string{group}
	change(&made)
	if _, err := made.guest(); err != nil {
		return err
	}
	if len(f.Groups()) == 1 {
		made.Processes = nil
		f.VM = Many[VM]{made}
		return nil
	}
	all := Many[VM]{made}
	for _, vm := range f.VM {
		others := slices.DeleteFunc(slices.Clone(vm.Processes), func(name string) bool { return name == group })
		if len(vm.Processes) > 0 && len(others) == 0 {
			continue
		}
		vm.Processes = others
		all = append(all, vm)
	}
	f.VM = all
	return nil
}

func (vm *VM) guest() (*hangar.Guest, error) {
	var guest hangar.Guest
	if vm.Size != "" {
		preset, ok := hangar.Preset(vm.Size)
		if !ok {
			if strings.HasPrefix(vm.Size, "a10") || strings.HasPrefix(vm.Size, "l40") {
				text, instead, _ := strings.Cut(noGPU, "|")
				return nil, fmt.Errorf("vm.size %q: %s; %s", vm.Size, text, instead)
			}
			return nil, fmt.Errorf("vm.size %q is none of %s", vm.Size, strings.Join(hangar.Presets(), ", "))
		}
		guest = preset
	}
	guest.CPUs, guest.CPUKind = cmp.Or(vm.CPUs, guest.CPUs), cmp.Or(vm.CPUKind, guest.CPUKind)
	guest.MemoryMB = cmp.Or(int(vm.Memory), vm.MemoryMB, guest.MemoryMB)
	return &guest, guest.Complete("vm.")
}

// addServices adds the services of a group, and their machine checks.
func (f *File) addServices(g *Group, config *hangar.MachineConfig) {
	if h := f.HTTPService; h != nil && f.in(h.Processes, g.Name) {
		s := h.config()
		s.Protocol, s.InternalPort = "tcp", cmp.Or(h.InternalPort, DefaultPort)
		s.Ports = []hangar.ServicePort{
			{Port: httpPort, Handlers: []string{"http"}, ForceHTTPS: h.ForceHTTPS, HTTP: h.HTTP},
			{Port: httpsPort, Handlers: []string{"http", "tls"}, TLS: h.TLS, HTTP: h.HTTP},
		}
		config.Services = append(config.Services, s)
		g.Checks = append(g.Checks, h.MachineChecks...)
	}
	for i := range f.Services {
		from := &f.Services[i]
		if !f.in(from.Processes, g.Name) {
			continue
		}
		s := from.config()
		s.Protocol, s.InternalPort, s.Ports = cmp.Or(from.Protocol, "tcp"), cmp.Or(from.InternalPort, DefaultPort), from.Ports
		for _, k := range from.TCPChecks {
			s.Checks = append(s.Checks, k.config("tcp"))
		}
		for _, k := range from.HTTPChecks {
			s.Checks = append(s.Checks, k.config("http"))
		}
		config.Services = append(config.Services, s)
		g.Checks = append(g.Checks, from.MachineChecks...)
	}
}

// config returns the service with what both kinds have in common.
func (s *serviceKeys) config() hangar.Service {
	made := hangar.Service{Autostart: s.AutoStart, MinMachinesRunning: s.MinMachinesRunning, Concurrency: s.Concurrency}
	if s.AutoStop != nil {
		made.Autostop = s.AutoStop.value()
	}
	if s.AutoStopAfter != nil {
		d := hangar.Duration(*s.AutoStopAfter)
		made.AutostopAfter = &d
	}
	for _, k := range s.Checks {
		made.Checks = append(made.Checks, k.config(cmp.Or(k.Type, "http")))
	}
	return made
}

func (k *Check) config(kind string) hangar.Check {
	made := hangar.Check{
		Type: kind, Port: k.Port, Interval: k.Interval.duration(), Timeout: k.Timeout.duration(), GracePeriod: k.GracePeriod.duration(),
		Method: k.Method, Path: k.Path, Protocol: k.Protocol, TLSServerName: k.TLSServerName, TLSSkipVerify: k.TLSSkipVerify,
	}
	for _, name := range slices.Sorted(maps.Keys(k.Headers)) {
		made.Headers = append(made.Headers, hangar.Header{Name: name, Values: []string{string(k.Headers[name])}})
	}
	return made
}

func (f *File) addFiles(config *hangar.MachineConfig, group string, from Sources) error {
	for i, file := range f.Files {
		if !f.in(file.Processes, group) {
			continue
		}
		at := fmt.Sprintf("files[%d]", i)
		made := hangar.File{GuestPath: file.GuestPath, SecretName: file.SecretName, Mode: file.Mode}
		var err error
		switch {
		case file.LocalPath != "" && from.ReadFile == nil:
			err = fmt.Errorf("%s.local_path: the content of %q is not a part of the release", at, file.LocalPath)
		case file.LocalPath != "":
			made.RawValue, err = from.ReadFile(file.LocalPath)
		case file.RawValue != "":
			if made.RawValue, err = base64.StdEncoding.DecodeString(file.RawValue); err != nil {
				err = fmt.Errorf("%s.raw_value: is not base64", at)
			}
		}
		if err != nil {
			return err
		}
		config.Files = append(config.Files, made)
	}
	return nil
}

// ReleaseCommand returns the config of the Machine that runs the release command, and how long it may take. It
// returns nil if the file has no release command.
func (f *File) ReleaseCommand(image string) (*hangar.MachineConfig, time.Duration, error) {
	if f.Deploy == nil || f.Deploy.ReleaseCommand == "" {
		return nil, 0, nil
	}
	words, err := cmdline.Split(f.Deploy.ReleaseCommand)
	if err != nil {
		return nil, 0, fmt.Errorf("deploy.release_command: %w", err)
	}
	vm := f.Deploy.ReleaseCommandVM
	if vm == nil {
		vm = &VM{}
	}
	guest, err := vm.guest()
	if err != nil {
		return nil, 0, err
	}
	config, err := f.task(image, guest)
	config.Init.Cmd, config.Init.Exec = words, nil
	config.Env["RELEASE_COMMAND"] = "1"
	return &config, f.Deploy.ReleaseCommandTimeout.Or(DefaultReleaseCommandTimeout), err
}

// task returns the config of a Machine that runs once.
func (f *File) task(image string, guest *hangar.Guest) (hangar.MachineConfig, error) {
	config, err := f.basis(image)
	config.Guest = guest
	config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	config.DNS = &hangar.DNSConfig{SkipRegistration: true}
	if config.Env == nil {
		config.Env = map[string]string{}
	}
	return config, err
}

// MachineCheck returns the config of the Machine that checks another one at an address, and how long it may
// take.
func (f *File) MachineCheck(k MachineCheck, image, address string) (*hangar.MachineConfig, time.Duration, error) {
	guest, err := (&VM{}).guest()
	if err != nil {
		return nil, 0, err
	}
	config, err := f.task(cmp.Or(k.Image, image), guest)
	if err != nil {
		return nil, 0, err
	}
	config.Init.Cmd, config.Init.Entrypoint, config.Init.Exec = k.Command, k.Entrypoint, nil
	for _, prefix := range []string{hangar.GuestEnvPrefixes.Neutral, hangar.GuestEnvPrefixes.Original} {
		config.Env[prefix+"TEST_MACHINE_IP"] = address
	}
	config.StopConfig, err = stopConfig(k.KillSignal, nil)
	return &config, k.KillTimeout.Or(DefaultMachineCheckTimeout), err
}

// Digest returns a digest of the config and the mounts of a group.
func (g *Group) Digest() (string, error) {
	raw, err := json.Marshal(struct {
		Config hangar.MachineConfig
		Mounts []Mount
	}{g.Config, g.Mounts})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16]), nil
}
