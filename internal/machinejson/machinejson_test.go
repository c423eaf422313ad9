package machinejson_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// configText is what a config is written as.
func configText(t *testing.T, c hangar.MachineConfig) string {
	t.Helper()
	raw, err := c.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
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
		var pool machinejson.Pool
		for name, encode := range map[string]func(any) ([]byte, error){"EncodeJSON": hangar.EncodeJSON, "json.Marshal": json.Marshal} {
			raw, err := encode(hangar.Machine{ID: "d890123456789e", Name: "m", Config: c})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), configText(t, c)) == (name == "json.Marshal" && strings.Contains(config, "<")) {
				t.Errorf("%s writes %s of %s", name, raw, config)
			}
			for _, pool := range []*machinejson.Pool{nil, &pool, &pool} {
				comesBack(t, raw, pool, c)
			}
		}
	}
	none := (*machinejson.Pool)(nil).Stored(new(hangar.Machine))
	if err := json.Unmarshal([]byte(`{"config":{"image":1}}`), &none); err == nil {
		t.Error("a config with a bad type is restored")
	}
}

func comesBack(t *testing.T, raw []byte, pool *machinejson.Pool, c hangar.MachineConfig) {
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
