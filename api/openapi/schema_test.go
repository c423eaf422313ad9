package openapi_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/api/openapi"
)

type inner struct {
	Name string `json:"name"`
	Deep string `json:"deep"`
}

type itself struct {
	Next *itself `json:"next,omitempty"`
}

type everything struct {
	inner
	Deep     int               `json:"deep"` // hides that of inner
	Bool     bool              `json:"bool"`
	Unsigned uint8             `json:"unsigned,omitempty"`
	Float    float64           `json:"float"`
	List     []inner           `json:"list"`
	Bytes    []byte            `json:"bytes,omitempty"`
	Map      map[string]int    `json:"map,omitzero"`
	Any      any               `json:"any"`
	Pointer  *int              `json:"pointer"`
	Struct   *inner            `json:"struct,omitempty"`
	Same     itself            `json:"same"`
	Untagged string            //nolint:tagliatelle // it is what is tested
	Hidden   string            `json:"-"`
	private  string            //nolint:unused // it is what is tested
	Must     string            `json:"must,omitempty" schema:"required"`
	Nested   struct{ X []int } `json:"nested"`
}

type roomView struct {
	At time.Time `json:"at"`
}

type roomRequest struct {
	At time.Time `json:"at"`
}

// clashing is another type with a name that is taken.
func clashing() reflect.Type {
	type inner struct{ X int }
	return reflect.TypeFor[inner]()
}

func schemas() *openapi.Schemas {
	s := openapi.NewSchemas()
	s.Know(reflect.TypeFor[time.Time](), openapi.Schema{Type: []string{"string"}, Format: "date-time"})
	return s
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestSchemaOfStruct(t *testing.T) {
	for _, test := range []struct {
		direction openapi.Direction
		want      string
	}{
		{openapi.Answered, `{"type":["object"],"properties":{
			"Untagged":{"type":["string"]},"any":{},"bool":{"type":["boolean"]},"bytes":{"type":["string"],"format":"byte"},
			"deep":{"type":["integer"]},"float":{"type":["number"]},"list":{"type":["array"],"items":{"$ref":"#/components/schemas/Inner"}},
			"map":{"type":["object"],"additionalProperties":{"type":["integer"]}},"must":{"type":["string"]},"name":{"type":["string"]},
			"nested":{"type":["object"],"properties":{"X":{"type":["array"],"items":{"type":["integer"]}}},"required":["X"]},
			"pointer":{"type":["integer","null"]},"same":{"$ref":"#/components/schemas/Itself"},"struct":{"$ref":"#/components/schemas/Inner"},
			"unsigned":{"type":["integer"],"minimum":0}},
			"required":["Untagged","any","bool","deep","float","list","name","nested","pointer","same"]}`},
		{openapi.Sent, `{"type":["object"],"properties":{
			"Untagged":{"type":["string","null"]},"any":{},"bool":{"type":["boolean","null"]},"bytes":{"type":["string","null"],"format":"byte"},
			"deep":{"type":["integer","null"]},"float":{"type":["number","null"]},
			"list":{"type":["array","null"],"items":{"anyOf":[{"$ref":"#/components/schemas/Inner"},{"type":["null"]}]}},
			"map":{"type":["object","null"],"additionalProperties":{"type":["integer","null"]}},"must":{"type":["string"]},"name":{"type":["string","null"]},
			"nested":{"type":["object","null"],"properties":{"X":{"type":["array","null"],"items":{"type":["integer","null"]}}}},
			"pointer":{"type":["integer","null"]},"same":{"anyOf":[{"$ref":"#/components/schemas/Itself"},{"type":["null"]}]},
			"struct":{"anyOf":[{"$ref":"#/components/schemas/Inner"},{"type":["null"]}]},"unsigned":{"type":["integer","null"],"minimum":0}},
			"required":["must"]}`},
	} {
		s := schemas()
		ref := s.Of(reflect.TypeFor[everything](), test.direction)
		if ref.Ref != "#/components/schemas/Everything" {
			t.Errorf("the schema is %s, want a reference", asJSON(t, ref))
		}
		want := strings.NewReplacer("\n", "", "\t", "").Replace(test.want)
		if got := asJSON(t, s.Named()["Everything"]); got != want {
			t.Errorf("direction %d:\n%s\nwant\n%s", test.direction, got, want)
		}
		if got := asJSON(t, s.Named()["Itself"].Properties["next"]); !strings.Contains(got, `"#/components/schemas/Itself"`) {
			t.Errorf("a type that holds itself is %s", got)
		}
	}
}

func TestNames(t *testing.T) {
	s := schemas()
	s.Name(reflect.TypeFor[itself](), "Chain")
	for _, test := range []struct {
		t         reflect.Type
		direction openapi.Direction
		want      string
	}{
		{reflect.TypeFor[roomView](), openapi.Answered, "Room"},
		{reflect.TypeFor[roomRequest](), openapi.Sent, "RoomRequest"},
		{reflect.TypeFor[inner](), openapi.Answered, "Inner"},
		{reflect.TypeFor[inner](), openapi.Sent, "InnerInput"},
		{reflect.TypeFor[inner](), openapi.Answered, "Inner"},
		{reflect.TypeFor[itself](), openapi.Sent, "Chain"},
	} {
		if got := s.Of(test.t, test.direction).Ref; got != "#/components/schemas/"+test.want {
			t.Errorf("%s is named %s, want %s", test.t, got, test.want)
		}
	}
}

// TestEcho: what is echoed is described once, for both directions, and may hold more.
func TestEcho(t *testing.T) {
	s := schemas()
	s.Echo(reflect.TypeFor[roomView]())
	answered, sent := s.Of(reflect.TypeFor[roomView](), openapi.Answered), s.Of(reflect.TypeFor[roomView](), openapi.Sent)
	if answered.Ref != sent.Ref {
		t.Errorf("answered as %s, sent as %s", answered.Ref, sent.Ref)
	}
	want := `{"type":["object"],"properties":{"at":{"type":["string","null"],"format":"date-time"}},"additionalProperties":{}}`
	if got := asJSON(t, s.Named()["Room"]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestKnowAs(t *testing.T) {
	s := schemas()
	s.KnowAs(reflect.TypeFor[json.RawMessage](), reflect.TypeFor[inner]())
	if got := s.Of(reflect.TypeFor[json.RawMessage](), openapi.Answered); got.Ref != "#/components/schemas/Inner" {
		t.Errorf("got %s", asJSON(t, got))
	}
}

// TestRefusals: types that would be described wrongly are refused.
func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		t    reflect.Type
		says string
	}{
		"a type with its own JSON": {reflect.TypeFor[time.Time](), "writes its JSON itself"},
		"one inside":               {reflect.TypeFor[[]map[string]time.Time](), "writes its JSON itself"},
		"a channel":                {reflect.TypeFor[chan int](), "no JSON"},
		"a function":               {reflect.TypeFor[func()](), "no JSON"},
		"a name that is taken":     {clashing(), "both named Inner"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openapi.NewSchemas()
			s.Of(reflect.TypeFor[inner](), openapi.Answered)
			defer func() {
				if v, _ := recover().(string); !strings.Contains(v, test.says) {
					t.Errorf("said %q, want %q", v, test.says)
				}
			}()
			s.Of(test.t, openapi.Answered)
		})
	}
}

func TestNullable(t *testing.T) {
	for _, test := range []struct {
		schema openapi.Schema
		want   string
	}{
		{openapi.Schema{}, `{}`},
		{openapi.Schema{Type: []string{"string"}}, `{"type":["string","null"]}`},
		{openapi.Schema{Type: []string{"string", "null"}}, `{"type":["string","null"]}`},
		{openapi.Schema{Type: []string{"string"}, Enum: []any{"a"}}, `{"anyOf":[{"type":["string"],"enum":["a"]},{"type":["null"]}]}`},
		{openapi.Schema{Ref: "#/x"}, `{"anyOf":[{"$ref":"#/x"},{"type":["null"]}]}`},
	} {
		if got := asJSON(t, openapi.Nullable(&test.schema)); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	s := schemas()
	s.Describe(reflect.TypeFor[everything](), map[string]string{"struct": "A text."})
	s.Describe(reflect.TypeFor[inner](), map[string]string{"name": "Of what is embedded.", "deep": "Hidden."})
	s.Of(reflect.TypeFor[everything](), openapi.Answered)
	properties := s.Named()["Everything"].Properties
	for name, want := range map[string]string{"struct": "A text.", "name": "Of what is embedded.", "deep": "", "bool": ""} {
		if got := properties[name].Description; got != want {
			t.Errorf("%s is described as %q, want %q", name, got, want)
		}
	}
	defer func() {
		if v, _ := recover().(string); !strings.Contains(v, "no property gone") {
			t.Errorf("said %q", v)
		}
	}()
	s.Describe(reflect.TypeFor[roomView](), map[string]string{"gone": "x"})
	s.Of(reflect.TypeFor[roomView](), openapi.Answered)
}
