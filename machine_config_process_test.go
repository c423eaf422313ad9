package hangar_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func parse(t *testing.T, properties string) hangar.MachineConfig {
	t.Helper()
	c, err := hangar.ParseMachineConfig([]byte(`{` + properties + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		properties string
		want       []hangar.ProcessConfig
		path       string
	}{
		{`"image":"a"`, []hangar.ProcessConfig{{}}, "config.processes[0]"},
		{`"image":"a","processes":[{"exec":["x"]},{"cmd":["y"]}]`, []hangar.ProcessConfig{{Exec: []string{"x"}}, {Cmd: []string{"y"}}}, "config.processes[0]"},
		{
			`"image":"a","containers":[{"name":"n","entrypoint":["e"],"cmd":["c"],"user":"u","env":{"A":"1"},
			 "env_from":[{"env_var":"ID","field_ref":"id"}],"secrets":[{"env_var":"S"}]}]`,
			[]hangar.ProcessConfig{{
				Entrypoint: []string{"e"}, Cmd: []string{"c"}, User: "u", Env: map[string]string{"A": "1"},
				EnvFrom: []hangar.EnvFrom{{EnvVar: "ID", FieldRef: hangar.FieldID}}, Secrets: []hangar.ProcessSecret{{EnvVar: "S"}},
			}},
			"config.containers[0]",
		},
	} {
		c := parse(t, test.properties)
		if got := c.Commands(); !reflect.DeepEqual(got, test.want) || c.CommandPath(0) != test.path {
			t.Errorf("%s: runs %+v at %s, want %+v at %s", test.properties, got, c.CommandPath(0), test.want, test.path)
		}
	}
}

// TestSingleContainer: the settings of a single container apply to the Machine, and the config is
// echoed as it was sent.
func TestSingleContainer(t *testing.T) {
	c := parse(t, `"image":"a","restart":{"policy":"no"},"stop_config":{"signal":"SIGHUP","timeout":"9s"},"files":[{"guest_path":"/a"}],
		"containers":[{"image":"b","restart":{"policy":"on-failure","max_retries":2},"stop":{"signal":"SIGTERM"},"files":[{"guest_path":"/b"}],"x":1}]`)
	if c.ImageName() != "b" || c.StopSignal().String() != "SIGTERM" || c.StopTimeout() != 9*time.Second {
		t.Errorf("runs %s, stops with %s after %s", c.ImageName(), c.StopSignal(), c.StopTimeout())
	}
	if policy, n := c.RestartPolicy(); policy != hangar.RestartOnFailure || n != 2 {
		t.Errorf("restart policy is %s, %d", policy, n)
	}
	if files := c.WrittenFiles(); len(files) != 2 || files[0].GuestPath != "/a" || files[1].GuestPath != "/b" {
		t.Errorf("writes %+v", files)
	}
	const want = `{"containers":[{"files":[{"guest_path":"/b"}],"image":"b","restart":{"max_retries":2,"policy":"on-failure"},"stop":{"signal":"SIGTERM"},"x":1}],` +
		`"files":[{"guest_path":"/a"}],"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"restart":{"policy":"no"},` +
		`"stop_config":{"signal":"SIGHUP","timeout":"9s"}}`
	if got, err := c.MarshalJSON(); err != nil || string(got) != want {
		t.Errorf("echoed as %s, %v\nwant %s", got, err, want)
	}
	alone := parse(t, `"containers":[{"image":"b"}]`)
	if alone.ImageName() != "b" || alone.StopSignal() != hangar.DefaultStopSignal {
		t.Errorf("runs %s, stops with %s", alone.ImageName(), alone.StopSignal())
	}
}

func TestMemoryAndSwap(t *testing.T) {
	for _, test := range []struct {
		properties   string
		memory, swap int
		suspends     bool
	}{
		{`"image":"a"`, 256, 0, true},
		{`"image":"a","guest":{"memory_mb":512,"max_memory_mb":1024}`, 1024, 0, true},
		{`"image":"a","guest":{"memory_mb":512,"max_memory_mb":4096}`, 4096, 0, false},
		{`"image":"a","init":{"swap_size_mb":512}`, 256, 512, false},
		{`"image":"a","swap_size_mb":256`, 256, 256, false},
	} {
		c := parse(t, test.properties)
		if c.Guest.Memory() != test.memory || c.SwapMB() != test.swap || (c.CanSuspend() == nil) != test.suspends {
			t.Errorf("%s: memory %d, swap %d, %v", test.properties, c.Guest.Memory(), c.SwapMB(), c.CanSuspend())
		}
	}
}
