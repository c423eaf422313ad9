package hangar

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// The bounds of a MachineConfig beyond its Guest.
const (
	MaxStopTimeout     = 300 * time.Second
	DefaultStopTimeout = 5 * time.Second
	DefaultStopSignal  = Signal(syscall.SIGINT)

	MaxMetadataKeys       = 128
	MaxMetadataKeyBytes   = 256
	MaxMetadataValueBytes = 4 << 10

	MaxProcesses = 32
	MaxSwapMB    = 64 << 10 // 64 GiB
	MaxRootfsGB  = 500

	// MaxExecString is the most bytes that an argument of a program may have, or a variable with its
	// name. MaxExecBytes is the most that all of them may have. Both are limits of Linux (execve(2)).
	MaxExecString = 128<<10 - 1
	MaxExecBytes  = 2 << 20

	maxEnvBytes      = 256 << 10 // all variables of a process; a kernel refuses to execute with much more
	maxArgsBytes     = 128 << 10
	maxUserBytes     = 256
	maxVariableBytes = 256

	maxImageBytes = 1 << 10
	maxRetries    = 1_000_000
	maxServices   = 64
	maxPorts      = 256
	maxChecks     = 64 // of the config and its services together
	maxFiles      = 256
	minInterval   = time.Second
	maxInterval   = 24 * time.Hour

	minCheckTimeout = time.Millisecond
	maxCheckTimeout = time.Minute
	maxCheckName    = 128     // bytes
	maxCheckText    = 2 << 10 // bytes of a path, a name or a value of a header
	maxCheckHeaders = 64
)

var persistValues = []PersistRootfs{PersistNever, PersistRestart, PersistAlways}

// unsupportedProperties are properties without a field in MachineConfig that would change what a
// Machine is. To accept them would mean to ignore them.
var unsupportedProperties = []struct{ name, what string }{
	{"volumes", "volumes of containers are not offered"},
	{"cache_drive", "cache drives are not offered"},
	{"spot", "spot prices are not offered"},
}

// Validate checks every rule that can be checked without looking anything up. The
// error is CodeInvalid: ReasonBadConfig for a rule that is broken,
// ReasonUnsupported for what this platform does not offer. It expects a config
// that is normalised; see Normalize.
func (c *MachineConfig) Validate() error {
	checks := []func() error{
		c.validateSupported, c.validateImage, c.validateGuest, c.validateInit, c.validateMetadata, c.validateProcesses,
		c.validateServices, c.validateChecks, c.validateFiles, c.validateMounts, c.validateDNS, c.validateLifecycle, c.validateSchedule,
		c.validateStandbys, c.validateObserved, c.validateStatics,
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *MachineConfig) validateImage() error {
	images := []struct{ at, name string }{{"config.image", c.Image}}
	if k := c.container(); k != nil {
		images = append(images, struct{ at, name string }{"config.containers[0].image", k.Image})
	}
	for _, i := range images {
		switch {
		case len(i.name) > maxImageBytes:
			return badConfig(i.at, "has %d bytes, more than the %d that are allowed", len(i.name), maxImageBytes)
		case strings.ContainsFunc(i.name, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			return badConfig(i.at, "%q is not a reference to an image", i.name)
		}
	}
	if c.ImageName() == "" {
		return badConfig("config.image", "is required")
	}
	return nil
}

func (c *MachineConfig) validateSupported() error {
	switch {
	case len(c.Containers) > 1:
		return unsupported("config.containers", "several containers in one Machine are not offered")
	case c.sent == nil:
		return nil
	}
	var sent map[string]json.RawMessage
	if err := json.Unmarshal(c.sent.doc, &sent); err != nil {
		return badConfig("config", "%s", err)
	}
	for _, p := range unsupportedProperties {
		switch string(sent[p.name]) {
		case "", "null", "[]", "{}":
		default:
			return unsupported("config."+p.name, p.what)
		}
	}
	return nil
}

func (c *MachineConfig) validateGuest() error {
	if c.Guest == nil {
		return badConfig("config.guest", "is required")
	}
	return c.Guest.validate("config.guest.")
}

func (c *MachineConfig) validateInit() error {
	for _, swap := range []struct {
		at string
		mb int
	}{{"config.init.swap_size_mb", c.Init.SwapSizeMB}, {"config.swap_size_mb", c.SwapSizeMB}} {
		if swap.mb < 0 || swap.mb > MaxSwapMB {
			return badConfig(swap.at, "%d is not from 0 to %d", swap.mb, MaxSwapMB)
		}
	}
	if err := validateEnv("config.env", c.Env); err != nil {
		return err
	}
	return validateCommand("config.init", c.Init.Exec, c.Init.Entrypoint, c.Init.Cmd)
}

// validateCommand checks the three lists that a command is made of.
func validateCommand(at string, exec, entrypoint, cmd []string) error {
	for _, list := range []struct {
		path string
		args []string
	}{{at + ".exec", exec}, {at + ".entrypoint", entrypoint}, {at + ".cmd", cmd}} {
		total := 0
		for i, arg := range list.args {
			total += len(arg) + 1
			if strings.ContainsRune(arg, 0) {
				return badConfig(list.path+"["+strconv.Itoa(i)+"]", "contains a NUL")
			}
		}
		if total > maxArgsBytes {
			return badConfig(list.path, "has %d bytes, more than the %d that are allowed", total, maxArgsBytes)
		}
		if list.path != at+".cmd" && len(list.args) > 0 && list.args[0] == "" {
			return badConfig(list.path+"[0]", "is empty; it names the file to execute")
		}
	}
	return nil
}

func validateEnv(at string, env map[string]string) error {
	total := 0
	for name, value := range env {
		total += len(name) + len(value) + 2
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return badConfig(at, "%q is not the name of a variable", name)
		case strings.ContainsRune(value, 0):
			return badConfig(at+"."+name, "contains a NUL")
		case len(name)+len("=")+len(value) > MaxExecString:
			return badConfig(at+"."+name, "has %d bytes with its name, more than the %d of which a variable can be", len(name)+len("=")+len(value), MaxExecString)
		}
	}
	if total > maxEnvBytes {
		return badConfig(at, "has %d bytes, more than the %d that are allowed", total, maxEnvBytes)
	}
	return nil
}

func (c *MachineConfig) validateMetadata() error {
	return ValidateMetadata("config.metadata", c.Metadata)
}

// ValidateMetadata checks the metadata of a Machine as MachineConfig.Validate does. at is the path of
// the metadata in the request.
func ValidateMetadata(at string, metadata map[string]string) error {
	if len(metadata) > MaxMetadataKeys {
		return badConfig(at, "has %d keys, more than the %d that are allowed", len(metadata), MaxMetadataKeys)
	}
	for k, v := range metadata {
		switch {
		case k == "":
			return badConfig(at, "has an empty key")
		case len(k) > MaxMetadataKeyBytes:
			return badConfig(at, "has a key of %d bytes, more than the %d that are allowed", len(k), MaxMetadataKeyBytes)
		case !utf8.ValidString(k) || strings.ContainsFunc(k, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return badConfig(at, "has a key with control characters: %q", k)
		case len(v) > MaxMetadataValueBytes:
			return badConfig(at+"."+k, "has %d bytes, more than the %d that are allowed", len(v), MaxMetadataValueBytes)
		case !utf8.ValidString(v):
			return badConfig(at+"."+k, "is not valid UTF-8")
		}
	}
	return nil
}

func validateFiles(at string, files []File) error {
	if len(files) > maxFiles {
		return badConfig(at, "has %d entries, more than the %d that are allowed", len(files), maxFiles)
	}
	for i, f := range files {
		if err := f.validate(at + "[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
	}
	return nil
}

func (c *MachineConfig) validateFiles() error {
	return validateFiles("config.files", c.Files)
}

// reservedPaths are directories of a Machine that no file is written into: other file
// systems are mounted there, or the platform has its own.
var reservedPaths = []string{"/dev", "/proc", "/sys", "/.hangar"}

func (f *File) validate(at string) error {
	switch {
	case f.ImageConfig != "":
		return unsupported(at+".image_config", "files made from the config of an image are not offered")
	case f.SecretName != "" && len(f.RawValue) > 0:
		return badConfig(at+".secret_name", "stands beside raw_value; give one of the two")
	case strings.ContainsFunc(f.SecretName, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return badConfig(at+".secret_name", "%q is not the name of a secret", f.SecretName)
	case !path.IsAbs(f.GuestPath) || path.Clean(f.GuestPath) != f.GuestPath || f.GuestPath == "/":
		return badConfig(at+".guest_path", "%q is not an absolute path of a file", f.GuestPath)
	case strings.ContainsRune(f.GuestPath, 0):
		return badConfig(at+".guest_path", "contains a NUL")
	case slices.ContainsFunc(reservedPaths, func(dir string) bool { return strings.HasPrefix(f.GuestPath+"/", dir+"/") }):
		return badConfig(at+".guest_path", "%q is not in the image's file system: the platform has %v", f.GuestPath, reservedPaths)
	case f.Mode > 0o7777:
		return badConfig(at+".mode", "%#o is not from 0 to 07777", f.Mode)
	default:
		return nil
	}
}

func (c *MachineConfig) validateLifecycle() error {
	if c.PersistRootfs != "" && !slices.Contains(persistValues, c.PersistRootfs) {
		return badConfig("config.persist_rootfs", "%q is not one of %v", c.PersistRootfs, persistValues)
	}
	if r := c.Rootfs; r != nil && r.Persist != "" && !slices.Contains(persistValues, r.Persist) {
		return badConfig("config.rootfs.persist", "%q is not one of %v", r.Persist, persistValues)
	}
	if r := c.Rootfs; r != nil && (r.SizeGB < 0 || r.SizeGB > MaxRootfsGB) {
		return badConfig("config.rootfs.size_gb", "%d is not from 0 to %d", r.SizeGB, MaxRootfsGB)
	}
	if err := validateRestart("config.restart", c.Restart); err != nil {
		return err
	}
	return validateStop("config.stop_config", c.StopConfig)
}

func validateRestart(at string, r *RestartConfig) error {
	if r == nil {
		return nil
	}
	switch r.Policy {
	case "", RestartNo, RestartOnFailure, RestartAlways:
	case "spot-price":
		return unsupported(at+".policy", "spot prices are not offered")
	default:
		return badConfig(at+".policy", "%q is not one of %v", r.Policy, []RestartPolicy{RestartNo, RestartOnFailure, RestartAlways})
	}
	if r.MaxRetries < 0 || r.MaxRetries > maxRetries {
		return badConfig(at+".max_retries", "%d is not from 0 to %d", r.MaxRetries, maxRetries)
	}
	return nil
}

func validateStop(at string, s *StopConfig) error {
	switch {
	case s == nil:
		return nil
	case s.Timeout != nil && (*s.Timeout < 0 || time.Duration(*s.Timeout) > MaxStopTimeout):
		return badConfig(at+".timeout", "%s is not from 0s to %s", s.Timeout, MaxStopTimeout)
	case s.Signal != nil && (*s.Signal < 0 || *s.Signal > 64):
		return badConfig(at+".signal", "%d is not from 1 to 64", *s.Signal)
	default:
		return nil
	}
}

// RestartPolicy returns what follows an exit, with the defaults filled in:
// the policy, and how many restarts within five minutes it allows (0: any number).
func (c *MachineConfig) RestartPolicy() (policy RestartPolicy, maxRetries int) {
	policy, maxRetries = RestartOnFailure, DefaultMaxRetries
	r := c.Restart
	if k := c.container(); k != nil && k.Restart != nil {
		r = k.Restart
	}
	if r != nil {
		if r.Policy != "" {
			policy = r.Policy
		}
		if r.MaxRetries > 0 {
			maxRetries = r.MaxRetries
		}
	}
	if policy != RestartOnFailure {
		maxRetries = 0
	}
	return policy, maxRetries
}

// StopSignal is what asks the main process to end.
func (c *MachineConfig) StopSignal() Signal {
	for _, s := range c.stops() {
		if s != nil && s.Signal != nil && *s.Signal > 0 {
			return *s.Signal
		}
	}
	return DefaultStopSignal
}

// stops are the configs that say how to stop, the most important first.
func (c *MachineConfig) stops() []*StopConfig {
	if k := c.container(); k != nil {
		return []*StopConfig{k.Stop, c.StopConfig}
	}
	return []*StopConfig{c.StopConfig}
}

// StopTimeout is how long the main process has to end before SIGKILL.
func (c *MachineConfig) StopTimeout() time.Duration {
	for _, s := range c.stops() {
		if s != nil && s.Timeout != nil && *s.Timeout > 0 {
			return time.Duration(*s.Timeout)
		}
	}
	return DefaultStopTimeout
}

// Persist says when the root file system is reset. It knows all the places where a config may say so.
func (c *MachineConfig) Persist() PersistRootfs {
	switch {
	case c.Rootfs != nil && c.Rootfs.Persist != "":
		return c.Rootfs.Persist
	case c.Guest != nil && c.Guest.PersistRootfs != "":
		return c.Guest.PersistRootfs
	case c.PersistRootfs != "":
		return c.PersistRootfs
	default:
		return PersistNever
	}
}

// RootfsGB is the size of the writable layer of the root file system, in GiB; 0: the host's default.
func (c *MachineConfig) RootfsGB() int {
	if c.Rootfs == nil {
		return 0
	}
	return c.Rootfs.SizeGB
}

// SwapMB is the swap that the config asks for, in MiB.
func (c *MachineConfig) SwapMB() int { return max(c.Init.SwapSizeMB, c.SwapSizeMB) }

// CanSuspend answers CodeFailedPrecondition with ReasonUnsupported for a Machine
// that can only be stopped, and says why.
func (c *MachineConfig) CanSuspend() error {
	refuse := func(format string, args ...any) error {
		return Errorf(CodeFailedPrecondition, ReasonUnsupported, "machine cannot be suspended: "+format, args...)
	}
	switch {
	case c.Guest != nil && c.Guest.Memory() > MaxSuspendMemoryMB:
		return refuse("it has %d MB of memory, more than %d", c.Guest.Memory(), MaxSuspendMemoryMB)
	case c.SwapMB() > 0:
		return refuse("it has swap")
	case c.Schedule != "":
		return refuse("it has a schedule")
	case c.Guest != nil && c.Guest.GPUs > 0:
		return refuse("it has a GPU")
	default:
		return nil
	}
}

// UnmarshalJSON reads a name or, as older clients send them, a number from 0 to 3.
func (p *PersistRootfs) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null", "0":
		*p = ""
	case "1":
		*p = PersistNever
	case "2":
		*p = PersistAlways
	case "3":
		*p = PersistRestart
	default:
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*p = PersistRootfs(s)
	}
	return nil
}
