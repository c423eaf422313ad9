package hangar_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
)

// configText is the JSON that a config is written as.
func configText(t *testing.T, c hangar.MachineConfig) string {
	t.Helper()
	raw, err := c.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestSealedConfigIsWrittenAsBefore(t *testing.T) {
	changes := map[string]func(c *hangar.MachineConfig){
		"nothing":          func(*hangar.MachineConfig) {},
		"a text":           func(c *hangar.MachineConfig) { c.Image = "b" },
		"a map":            func(c *hangar.MachineConfig) { c.Env = map[string]string{"C": "3"} },
		"a map to none":    func(c *hangar.MachineConfig) { c.Env = nil },
		"what is below":    func(c *hangar.MachineConfig) { c.Init.Cmd = []string{"sleep"} },
		"a slice":          func(c *hangar.MachineConfig) { c.Services = c.Services[:0] },
		"a pointer":        func(c *hangar.MachineConfig) { c.Guest = &hangar.Guest{CPUKind: "shared", CPUs: 2, MemoryMB: 512} },
		"metadata":         func(c *hangar.MachineConfig) { c.SetMetadata(map[string]string{"role": "<web>"}) },
		"a text and pairs": func(c *hangar.MachineConfig) { c.Image = "b"; c.SetMetadata(map[string]string{"role": "web"}) },
		"pairs and a text": func(c *hangar.MachineConfig) { c.SetMetadata(map[string]string{"role": "web"}); c.Image = "b" },
	}
	const sent = `{"image":"a","x":1.0,"env":{"A":"<1>"},"metadata":{"k":"v"},"init":{"cmd":["true"]},"services":[{"internal_port":80,"y":[]}]}`
	for name, change := range changes {
		plain, err := hangar.ParseMachineConfig([]byte(sent))
		if err != nil {
			t.Fatal(err)
		}
		sealed := plain
		for range 2 {
			if err := sealed.Seal(); err != nil {
				t.Fatal(err)
			}
		}
		read, err := hangar.ReadSealed([]byte(configText(t, plain)))
		if err != nil {
			t.Fatal(err)
		}
		shared := read.WithMetadata([]byte(configText(t, plain)), read.Metadata)
		change(&shared)
		change(&plain)
		change(&sealed)
		want := configText(t, plain)
		if got := configText(t, sealed); got != want {
			t.Errorf("%s: sealed, it is written as %s\nwant %s", name, got, want)
		}
		if got := configText(t, shared); got != want {
			t.Errorf("%s: shared, it is written as %s\nwant %s", name, got, want)
		}
		if err := sealed.Seal(); err != nil {
			t.Fatal(err)
		}
		if got := configText(t, sealed); got != want {
			t.Errorf("%s: sealed again, it is written as %s\nwant %s", name, got, want)
		}
	}
}
