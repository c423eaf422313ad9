package machine

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// configFlags are the flags about a Machine's config. They become a JSON merge patch (RFC 7396), so that
// an update keeps everything else, including properties that this program does not know.
type configFlags struct {
	file       string
	image      string
	env        []string
	unsetEnv   []string
	entrypoint string
	memory     string
	cpus       int
	cpuKind    string
	size       string
	services   serviceFlags
	restart    string
	remove     bool
	metadata   []string
	fileLocal  []string
	db         string
	volumes    []string
	stopSignal string
	stopGrace  time.Duration
	persist    string
	schedule   string
	standbyFor []string
	tty        bool
}

func (f *configFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.file, "config", "", "start from this Machine config, a JSON file (- for standard input); other flags take precedence")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set a variable, NAME=VALUE, or NAME to copy it from this environment; may be repeated")
	fs.StringVar(&f.entrypoint, "entrypoint", "", "replace the image's entrypoint")
	fs.StringVarP(&f.memory, "memory", "m", "", "memory, e.g. 512 (MB), 1gb; a multiple of 256 MB")
	fs.IntVar(&f.cpus, "cpus", 0, "number of CPUs")
	fs.StringVar(&f.cpuKind, "cpu-kind", "", "shared or performance")
	fs.StringVar(&f.size, "size", "", "a preset instead of cpus and memory, e.g. shared-cpu-2x")
	f.services.add(fs)
	fs.StringVar(&f.restart, "restart", "", "when the main process ends: no, always, on-failure or on-failure:RETRIES")
	fs.BoolVar(&f.remove, "rm", false, "destroy the Machine when its main process ends")
	fs.StringArrayVar(&f.metadata, "metadata", nil, "set metadata KEY=VALUE; may be repeated")
	fs.StringArrayVar(&f.fileLocal, "file-local", nil, "put a local file into the Machine, /PATH/INSIDE=LOCAL; may be repeated")
	fs.StringVar(&f.db, "db", "", "run COMMAND beside a node of replicated databases, with this local litefs.yml as its configuration")
	fs.StringArrayVarP(&f.volumes, "volume", "v", nil, "mount a volume, VOLUME:/PATH with its id or name; may be repeated")
	fs.StringVar(&f.stopSignal, "stop-signal", "", "signal that asks the Machine to stop (default SIGINT)")
	fs.DurationVar(&f.stopGrace, "stop-timeout", 0, "time to stop before it is killed (default 5s)")
	fs.StringVar(&f.persist, "persist-rootfs", "", "when to keep the root file system: never, restart or always")
	fs.StringVar(&f.schedule, "schedule", "", "start the Machine periodically: hourly, daily, weekly or monthly")
	fs.StringSliceVar(&f.standbyFor, "standby-for", nil, "ids of Machines for which this one stands by, stopped; may be repeated")
	fs.BoolVar(&f.tty, "tty", false, "give the main process a terminal")
	for flag, values := range map[string][]string{
		"autostop":       {"off", "stop", "suspend"},
		"restart":        {"no", "always", "on-failure"},
		"cpu-kind":       {"shared", "performance"},
		"persist-rootfs": {"never", "restart", "always"},
		"schedule":       {"hourly", "daily", "weekly", "monthly"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// object is a JSON object.
type object = map[string]any

// patch converts the given flags and the command to a merge patch of the Machine config base.
func (f *configFlags) patch(c *cli.Invocation, cmd *cobra.Command, base object, command []string) (object, error) {
	p := object{}
	if f.image != "" {
		p["image"] = f.image
	}
	if len(command) > 0 {
		set(p, "init", "cmd", command)
	}
	if f.db != "" && f.entrypoint != "" {
		return nil, cli.UsageErrorf("--db and --entrypoint exclude one another")
	}
	if f.entrypoint != "" {
		set(p, "init", "entrypoint", []string{f.entrypoint})
	}
	if f.tty {
		set(p, "init", "tty", true)
	}
	if cmd.Flags().Changed("rm") {
		p["auto_destroy"] = f.remove
	}
	if f.persist != "" {
		set(p, "rootfs", "persist", f.persist)
	}
	if cmd.Flags().Changed("schedule") {
		p["schedule"] = f.schedule
	}
	if cmd.Flags().Changed("standby-for") {
		p["standbys"] = f.standbyFor
	}
	for _, part := range []func(object) error{
		func(p object) error { return f.patchEnv(c, p) }, f.patchGuest, f.patchMetadata, f.patchRestart, f.patchStop, f.patchFiles, f.patchMounts,
		func(p object) error { return f.patchDB(p, command) },
		func(p object) error { return f.services.patch(cmd, base, p) },
	} {
		if err := part(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// set sets a value of an object within an object.
func set(o object, outer, inner string, value any) {
	in, ok := o[outer].(object)
	if !ok {
		in = object{}
		o[outer] = in
	}
	in[inner] = value
}

func (f *configFlags) patchEnv(c *cli.Invocation, p object) error {
	for _, e := range f.env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			value = c.Getenv(name)
		}
		if name == "" {
			return cli.UsageErrorf("invalid --env %q: must be NAME=VALUE or NAME", e)
		}
		set(p, "env", name, value)
	}
	for _, name := range f.unsetEnv {
		set(p, "env", name, nil)
	}
	return nil
}

func (f *configFlags) patchGuest(p object) error {
	if f.size != "" {
		p["size"] = f.size
		p["guest"] = nil
		return nil
	}
	if f.cpus != 0 {
		set(p, "guest", "cpus", f.cpus)
	}
	if f.cpuKind != "" {
		set(p, "guest", "cpu_kind", f.cpuKind)
	}
	if f.memory != "" {
		mb, err := cli.ParseMemory(f.memory)
		if err != nil {
			return err
		}
		set(p, "guest", "memory_mb", mb)
	}
	return nil
}

func (f *configFlags) patchMetadata(p object) error {
	pairs, err := cli.ParsePairs("--metadata", f.metadata)
	for k, v := range pairs {
		set(p, "metadata", k, v)
	}
	return err
}

func (f *configFlags) patchRestart(p object) error {
	if f.restart == "" {
		return nil
	}
	policy, retries, limited := strings.Cut(f.restart, ":")
	restart := object{"policy": policy}
	if limited {
		n, err := strconv.Atoi(retries)
		if err != nil || n < 1 || policy != string(hangar.RestartOnFailure) {
			return cli.UsageErrorf("invalid --restart %q: must be no, always, on-failure or on-failure:RETRIES", f.restart)
		}
		restart["max_retries"] = n
	}
	p["restart"] = restart
	return nil
}

func (f *configFlags) patchStop(p object) error {
	if f.stopSignal != "" {
		sig, err := hangar.ParseSignal(f.stopSignal)
		if err != nil {
			return err
		}
		set(p, "stop_config", "signal", sig)
	}
	if f.stopGrace != 0 {
		set(p, "stop_config", "timeout", hangar.Duration(f.stopGrace))
	}
	return nil
}

func (f *configFlags) patchFiles(p object) error {
	var files []hangar.File
	for _, pair := range f.fileLocal {
		guest, local, ok := strings.Cut(pair, "=")
		if !ok || guest == "" || local == "" {
			return cli.UsageErrorf("invalid --file-local %q: must be /PATH/INSIDE=LOCAL", pair)
		}
		info, err := os.Stat(local)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(local)
		if err != nil {
			return err
		}
		files = append(files, hangar.File{GuestPath: guest, RawValue: content, Mode: uint32(info.Mode().Perm())})
	}
	if files != nil {
		p["files"] = files
	}
	return nil
}

// base reads the config that the flags change: that of --config, or an empty one.
func (f *configFlags) base(c *cli.Invocation) (object, error) {
	if f.file == "" {
		return object{}, nil
	}
	in := c.Stdin
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	var config object
	dec := json.NewDecoder(in)
	dec.UseNumber()
	if err := dec.Decode(&config); err != nil {
		return nil, fmt.Errorf("read the Machine config in %s: %w", f.file, err)
	}
	return config, nil
}

// asObject converts a config to an object.
func asObject(config hangar.MachineConfig) (object, error) {
	b, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var o object
	return o, json.Unmarshal(b, &o)
}

// patched applies a merge patch to a config.
func patched(base, patch object) (hangar.MachineConfig, error) {
	var config hangar.MachineConfig
	if _, ok := patch["size"]; !ok && patch["guest"] != nil {
		// The size was expanded to guest when it was set. It would contradict the new guest.
		base = maps.Clone(base)
		delete(base, "size")
	}
	plain, err := plainObject(patch)
	if err != nil {
		return config, err
	}
	b, err := json.Marshal(merge(base, plain))
	if err != nil {
		return config, err
	}
	return config, json.Unmarshal(b, &config)
}

// plainObject converts the typed values of a patch to those of decoded JSON.
func plainObject(o object) (object, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var plain object
	return plain, json.Unmarshal(b, &plain)
}

// merge applies an RFC 7396 merge patch without changing its operands.
func merge(base, patch object) object {
	out := maps.Clone(base)
	if out == nil {
		out = object{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case object:
			inner, _ := out[k].(object)
			out[k] = merge(inner, v)
		default:
			out[k] = v
		}
	}
	return out
}
