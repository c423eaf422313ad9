package hangar_test

import (
	"encoding/json"
	"reflect"
	"strings"
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
	var pool hangar.MachinePool
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
		shared := plain
		if err := pool.Seal(&shared); err != nil {
			t.Fatal(err)
		}
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

func TestStoredMachineComesBack(t *testing.T) {
	for _, config := range []string{
		`{"image":"a"}`,
		`{"image":"a","metadata":{}}`,
		`{"image":"a","x":{"metadata":{"no":"no"}},"env":{"metadata":"no"},"metadata":{"k":"v","q":"[\\\",}"}}`,
		`{"image":"a","x":{"y":1.50},"env":{"A":"<&>\u2028"},"services":[{"internal_port":80,"autostop":"stop"}],"stop_config":{"timeout":5}}`,
	} {
		c, err := hangar.ParseMachineConfig([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		var pool hangar.MachinePool
		for name, encode := range map[string]func(any) ([]byte, error){"EncodeStored": hangar.EncodeStored, "json.Marshal": json.Marshal} {
			raw, err := encode(hangar.Machine{ID: "d890123456789e", Name: "m", Config: c})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), configText(t, c)) == (name == "json.Marshal" && strings.Contains(config, "<")) {
				t.Errorf("%s writes %s of %s", name, raw, config)
			}
			for _, pool := range []*hangar.MachinePool{nil, &pool, &pool} {
				comesBack(t, raw, pool, c)
			}
		}
	}
	none := (*hangar.MachinePool)(nil).Stored(new(hangar.Machine))
	if err := json.Unmarshal([]byte(`{"config":{"image":1}}`), &none); err == nil {
		t.Error("a config with a bad type is restored")
	}
}

func comesBack(t *testing.T, raw []byte, pool *hangar.MachinePool, c hangar.MachineConfig) {
	t.Helper()
	var m hangar.Machine
	stored := pool.Stored(&m)
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	stored.Restore()
	if m.ID != "d890123456789e" || m.Name != "m" {
		t.Errorf("restored %+v", m)
	}
	if got, want := configText(t, m.Config), configText(t, c); got != want {
		t.Errorf("restored and written: %s\nwant %s", got, want)
	}
	want := c
	if err := want.Seal(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m.Config, want) {
		t.Errorf("restored %+v\nwant %+v", m.Config, want)
	}
}
