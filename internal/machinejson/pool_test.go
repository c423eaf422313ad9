package machinejson_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// restored reads a config through a pool.
func restored(t *testing.T, pool *machinejson.Pool, document string) hangar.MachineConfig {
	t.Helper()
	var m hangar.Machine
	stored := pool.Stored(&m)
	if err := json.Unmarshal([]byte(`{"app_name":"web","image_ref":{"tag":"v1"},"config":`+document+`}`), &stored); err != nil {
		t.Fatal(err)
	}
	stored.Restore()
	if m.App != "web" || m.ImageRef.Tag != "v1" || m.Host != "" {
		t.Errorf("read %+v", m)
	}
	return m.Config
}

func TestPoolSharesAllButMetadata(t *testing.T) {
	var pool machinejson.Pool
	const document = `{"env":{"A":"1"},"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"metadata":{"n":"%d"},"x":[1]}`
	one, two := restored(t, &pool, fmt.Sprintf(document, 1)), restored(t, &pool, fmt.Sprintf(document, 2))
	if one.Guest != two.Guest || !reflect.DeepEqual(one.Env, two.Env) {
		t.Error("configs of two machines share nothing")
	}
	if one.Metadata["n"] != "1" || two.Metadata["n"] != "2" {
		t.Errorf("metadata are %v and %v", one.Metadata, two.Metadata)
	}
	if got := configText(t, two); got != fmt.Sprintf(document, 2) {
		t.Errorf("written as %s", got)
	}
	two.SetMetadata(map[string]string{"n": "3"})
	if got := configText(t, two); got != fmt.Sprintf(document, 3) {
		t.Errorf("with other metadata written as %s", got)
	}
	if got := configText(t, one); got != fmt.Sprintf(document, 1) {
		t.Errorf("the other is written as %s", got)
	}
	again := two
	again.Env = maps.Clone(again.Env)
	again.Env["A"] = "2"
	if got := configText(t, again); !strings.Contains(got, `"A":"2"`) || configText(t, one) != fmt.Sprintf(document, 1) {
		t.Errorf("with another environment written as %s", got)
	}
}

// TestPoolReadsAsWithoutIt reads documents one after the other through one pool, including documents
// that MarshalJSON never writes.
func TestPoolReadsAsWithoutIt(t *testing.T) {
	var pool machinejson.Pool
	for range 2 {
		for _, document := range poolDocuments() {
			got, want := restored(t, &pool, document), restored(t, nil, document)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s is read as %+v\nwant %+v", document, got, want)
			}
		}
	}
}

func poolDocuments() []string {
	return []string{
		`{"image":"a"}`,
		`{"image":"b"}`,
		`{}`,
		`{"metadata":null,"image":"a"}`,
		`{"metadata":{},"image":"a"}`,
		`{"metadata":{"a":"b"},"image":"a"}`,
		`{"image":"a","metadata":{"a":"b"}}`,
		`{"env":{"a":"b"},"image":"a","metadata":{"a":"c"}}`,
		`{"env":{"a":"c"},"image":"a","metadata":{"a":"b"}}`,
		`{"env":{"metadata":"x"},"image":"a"}`,
		`{"image":"metadata","metadata":{"metadata":"}"}}`,
		`{"image":"a","y":["metadata",{"metadata":{"a":"b"}}],"metadata":{"a":"\\\\"}}`,
		`{"image":"a","Metadata":{"a":"b"}}`,
		`{"image":"a","metadata":{"a":"b"},"METADATA":{"c":"d"}}`,
		`{"image":"a","metadata":{"a":"b"},"metadata":{"c":"d"}}`,
		`{"image":"a","meta\\u0064ata":{"a":"b"}}`,
		`{ "image": "a", "metadata" : {"a":"b"} }`,
		`{"image":"a","metadata": {"a":"b"} ,"x":1}`,
	}
}

func TestPoolForgets(t *testing.T) {
	var pool machinejson.Pool
	filler := strings.Repeat("x", 100_000)
	for i := range 200 {
		c := restored(t, &pool, fmt.Sprintf(`{"image":"a","env":{"N":"%d","X":"%s"},"metadata":{"n":"%d"}}`, i, filler, i))
		if c.Env["N"] != fmt.Sprint(i) || c.Metadata["n"] != fmt.Sprint(i) {
			t.Fatalf("config %d has environment %.20v and metadata %v", i, c.Env["N"], c.Metadata)
		}
	}
}

func FuzzPool(f *testing.F) {
	for _, document := range poolDocuments() {
		f.Add(document, document)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var pool machinejson.Pool
		for _, document := range []string{first, second} {
			var want, got hangar.Machine
			plain, shared := (*machinejson.Pool)(nil).Stored(&want), pool.Stored(&got)
			raw := []byte(`{"config":` + document + `}`)
			wantErr, gotErr := json.Unmarshal(raw, &plain), json.Unmarshal(raw, &shared)
			if (gotErr == nil) != (wantErr == nil) {
				t.Fatalf("%q is read with %v, without the pool with %v", document, gotErr, wantErr)
			}
			if gotErr != nil {
				continue
			}
			plain.Restore()
			shared.Restore()
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%q is read as %+v, without the pool as %+v", document, got, want)
			}
		}
	})
}
