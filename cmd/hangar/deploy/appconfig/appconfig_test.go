package appconfig

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// published is the path of the schema that editors load, relative to this package.
const published = "../../../../docs/hangar.schema.json"

var update = flag.Bool("update", false, "rewrite golden files")

func readFile(name string) ([]byte, error) { return []byte("the content of " + name), nil }

// golden compares a text with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got\n%s", path, got)
	}
}

func full(t *testing.T) (*File, []byte) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "full.toml"))
	if err != nil {
		t.Fatal(err)
	}
	f, notes, err := Parse("hangar.toml", raw)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	return f, raw
}

// TestMachines compares the Machines of a complete file with golden configs.
func TestMachines(t *testing.T) {
	t.Parallel()
	f, _ := full(t)
	made := map[string]any{}
	for _, name := range f.Groups() {
		g, err := f.Group(name, Sources{ReadFile: readFile})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = g
	}
	release, limit, err := f.ReleaseCommand("")
	if err != nil {
		t.Fatal(err)
	}
	check, _, err := f.MachineCheck(f.HTTPService.MachineChecks[0], "image", "fdaa::1")
	if err != nil {
		t.Fatal(err)
	}
	made["release command"], made["its time"], made["machine check"] = release, limit.String(), check
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "full.json", append(text, '\n'))
}

// TestDefinition: the definition that a release keeps of a file results in the same Machines.
// TestResize: one group gets another size, even if the file sets one, and the other groups keep theirs.
func TestResize(t *testing.T) {
	t.Parallel()
	const groups = "[processes]\na = \"x\"\nb = \"x\"\nc = \"x\"\n"
	for name, text := range map[string]string{
		"alone":       "[[vm]]\nmemory = \"512mb\"\n",
		"nothing":     groups,
		"all":         groups + "[[vm]]\nsize = \"shared-cpu-2x\"\n",
		"some":        groups + "[[vm]]\nsize = \"performance-1x\"\nprocesses = [\"a\", \"b\"]\n[[vm]]\nmemory = \"1gb\"\n",
		"one by name": groups + "[[vm]]\nsize = \"performance-1x\"\nprocesses = [\"a\"]\n[[vm]]\nmemory = \"1gb\"\nprocesses = [\"c\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _, err := Parse(FileName, []byte("app = \"web\"\n"+text))
			if err != nil {
				t.Fatal(err)
			}
			type size struct {
				kind         string
				cpus, memory int
			}
			sizes := func() map[string]size {
				found := map[string]size{}
				for _, name := range f.Groups() {
					guest, _, err := f.guest(name)
					if err != nil {
						t.Fatal(err)
					}
					found[name] = size{guest.CPUKind, guest.CPUs, guest.MemoryMB}
				}
				return found
			}
			want := sizes()
			group := f.Groups()[0]
			changed := want[group]
			changed.memory = 2048
			want[group] = changed
			for range 2 { // it may be repeated
				if err := f.Resize(group, func(vm *VM) { vm.Memory = 2048 }); err != nil {
					t.Fatal(err)
				}
				if got := sizes(); !maps.Equal(got, want) {
					t.Errorf("sizes are %+v, not %+v", got, want)
				}
			}
			raw, err := f.Definition()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := ParseDefinition("release v1", raw); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			if err := f.Resize(group, func(vm *VM) { vm.Size = "a10" }); err == nil {
				t.Error("a size that is not offered is accepted")
			}
			if got := sizes(); !maps.Equal(got, want) {
				t.Errorf("a size that is refused has made sizes %+v", got)
			}
		})
	}
}

func TestDefinition(t *testing.T) {
	t.Parallel()
	f, _ := full(t)
	raw, err := f.Definition()
	if err != nil {
		t.Fatal(err)
	}
	again, notes, err := ParseDefinition("release v1", raw)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	for _, name := range f.Groups() {
		a, err := f.Group(name, Sources{ReadFile: readFile})
		if err != nil {
			t.Fatal(err)
		}
		b, err := again.Group(name, Sources{ReadFile: readFile})
		if err != nil {
			t.Fatal(err)
		}
		x, errX := a.Digest()
		y, errY := b.Digest()
		if errX != nil || errY != nil || x != y {
			t.Errorf("%s: %s is not %s, %v, %v", name, x, y, errX, errY)
		}
		if _, err := again.Group(name, Sources{}); (err != nil) != (name == "web") {
			t.Errorf("%s without files: %v", name, err)
		}
	}
	if _, _, err := ParseDefinition("release v1", []byte("[]")); err == nil {
		t.Error("a list is a definition")
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, want string }{
		"unknown":        {"app = \"a\"\n[http_service]\nintenal_port = 1", "f:3: http_service.intenal_port: unknown key; did you mean internal_port?"},
		"far":            {"zzzzzzzz = 1", "f:1: zzzzzzzz: unknown key"},
		"in an array":    {"[[services]]\ninternal_port = 1\n[[services]]\n[[services.ports]]\nport = 1\n[[services.ports]]\nprt = 2", "f:7: services[1].ports[1].prt: unknown key; did you mean port?"},
		"inline":         {"[http_service]\nchecks = [{path = \"/\"},\n {pth = \"/\"}]", "f:3: http_service.checks[1].pth: unknown key; did you mean path?"},
		"dotted":         {"http_service.concurrency.typ = \"x\"", "f:1: http_service.concurrency.typ: unknown key; did you mean type?"},
		"syntax":         {"app = \n", "f:1: "},
		"type":           {"[http_service]\ninternal_port = \"x\"", "f:2: http_service.internal_port: must be a whole number"},
		"text":           {"app = 3", "f:1: app: must be a text"},
		"flag":           {"[http_service]\nforce_https = 1", "f:2: http_service.force_https: must be true or false"},
		"table":          {"http_service = 1", "f:1: http_service: must be a table"},
		"list":           {"services = 1", "f:1: services: must be a list"},
		"duration":       {"kill_timeout = \"soon\"", "f:1: kill_timeout: \"soon\" is not a duration"},
		"size":           {"[mounts]\nsource = \"a\"\ndestination = \"/a\"\ninitial_size = \"big\"", "f:4: mounts.initial_size: \"big\" is not a size such as \"10gb\""},
		"strategy":       {"[deploy]\nstrategy = \"slow\"", "f:2: deploy.strategy: \"slow\" is none of [rolling"},
		"unavailable":    {"[deploy]\nmax_unavailable = 1.5", "f:2: deploy.max_unavailable: \"1.5\" is neither"},
		"autostop":       {"[http_service]\nauto_stop_machines = \"later\"", "f:2: http_service.auto_stop_machines: \"later\" is not \"off\""},
		"group":          {"[processes]\nweb = \"x\"\n[http_service]\nprocesses = [\"wep\"]", "f:4: http_service.processes[0]: there is no process group \"wep\"; one of web"},
		"scale":          {"[scale]\nweb = 1", "f:2: scale.web: there is no process group \"web\"; one of app"},
		"numbers":        {"[scale]\napp = -1", "f:2: scale.app: -1 is not from 0 to 1000"},
		"mount":          {"[[mounts]]\nsource = \"a\"", "f:1: mounts[0]: needs source and destination"},
		"GPU":            {"[[vm]]\ngpu_kind = \"a10\"", "f:2: vm[0].gpu_kind: GPUs are not offered; leave them out"},
		"GPU size":       {"[[vm]]\nsize = \"a100-40gb\"", "GPUs are not offered"},
		"PostgreSQL":     {"[postgres]\nname = \"db\"", "f:1: postgres: managed PostgreSQL is not offered; add a database with `hangar extensions create`"},
		"billing":        {"[billing]\nplan = \"x\"", "f:1: billing: there is no billing"},
		"Consul":         {"[experimental]\nenable_consul = true", "f:2: experimental.enable_consul: Consul is not offered"},
		"signal":         {"kill_signal = \"SIGNO\"", "process group app: kill_signal: "},
		"quotes":         {"[processes]\nweb = \"a 'b\"", "process group web: processes.web: "},
		"the platform's": {"[http_service]\ninternal_port = 99999", "process group app: "},
		"large":          {"# " + strings.Repeat("x", MaxFileBytes), "f: has more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := Parse("f", []byte(test.file))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %s", err, test.want)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	_, notes, err := Parse("f", []byte("console_command = \"x\"\n[build]\nbuiltin = \"D\"\n[experimental]\nenable_consul = false"))
	if err != nil || len(notes) != 2 || notes[0].Line != 1 || notes[1].String() != "build.builtin: has no effect; images are built of a Dockerfile" {
		t.Error(err, notes)
	}
}

func TestFraction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		f       Fraction
		n, want int
	}{{0.33, 1, 1}, {0.33, 6, 1}, {0.33, 7, 2}, {0.5, 4, 2}, {1, 9, 1}, {3, 9, 3}} {
		if got := test.f.Of(test.n); got != test.want {
			t.Errorf("%v of %d is %d, not %d", test.f, test.n, got, test.want)
		}
	}
}

// TestSchema: the schema accepts every file that Parse accepts, and refuses unknown keys.
func TestSchema(t *testing.T) {
	t.Parallel()
	raw, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", published), append(raw, '\n'))
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("file.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("file.json")
	if err != nil {
		t.Fatal(err)
	}
	valid := func(file []byte) error {
		var tree map[string]any
		if err := toml.Unmarshal(file, &tree); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	_, file := full(t)
	if err := valid(file); err != nil {
		t.Error(err)
	}
	if valid([]byte("ap = \"x\"")) == nil {
		t.Error("an unknown key is valid")
	}
}

// FuzzParse: no file makes the parser panic, and every accepted file results in Machines, also after a release.
func FuzzParse(f *testing.F) {
	raw, err := os.ReadFile(filepath.Join("testdata", "full.toml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("[[a]]\n[a.b]\n[[a.b.c]]\nd.\"e f\" = [{g = 1}, 2]"))
	f.Add([]byte("vm = [{size = \"x\"}]\nmounts = {source=\"a\", destination=\"/a\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, _, err := Parse("f", raw)
		if err != nil {
			return
		}
		definition, err := file.Definition()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := ParseDefinition("d", definition)
		if err != nil {
			t.Fatalf("%s: %v", definition, err)
		}
		for _, name := range file.Groups() {
			a, errA := file.Group(name, Sources{Image: "i", ReadFile: readFile})
			b, errB := again.Group(name, Sources{Image: "i", ReadFile: readFile})
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			x, errX := a.Digest()
			y, errY := b.Digest()
			if errX != nil || errY != nil || x != y {
				t.Errorf("%s: %s, %s, %v, %v", name, x, y, errX, errY)
			}
		}
	})
}
