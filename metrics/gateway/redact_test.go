package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func filtered(t *testing.T, from io.Reader) (string, error) {
	t.Helper()
	var out bytes.Buffer
	filter := newJSONFilter(&out, nil)
	_, err := io.Copy(filter, from)
	return out.String(), errors.Join(err, filter.Close())
}

func TestJSONFilter(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{}`, `{}`},
		{`{"a":1,"b":[1,"x",{}]}`, `{"a":1,"b":[1,"x",{}]}`},
		{`{"__org__":"o"}`, `{}`},
		{`{"__org__":"o","a":"1"}`, `{"a":"1"}`},
		{`{"a":"1","__org__":"o"}`, `{"a":"1"}`},
		{`{"a":"1","__org__":"o","b":"2"}`, `{"a":"1","b":"2"}`},
		{`{"__org__":"o","__org__":"p"}`, `{}`},
		{`{"\u005f_org__":"o","a":"1"}`, `{"a":"1"}`},
		{`{"__org__":"}\"],{","a":"1"}`, `{"a":"1"}`},
		{`{"__org__":{"a":["}"]},"b":1}`, `{"b":1}`},
		{`{"__org__":7,"b":1}`, `{"b":1}`},
		{`{"a":"__org__","b":["__org__"]}`, `{"a":"__org__","b":["__org__"]}`},
		{`{"__org__x":"1","x__org__":"2"}`, `{"__org__x":"1","x__org__":"2"}`},
		{`{"a":"\"__org__\":\"x\",","b":1}`, `{"a":"\"__org__\":\"x\",","b":1}`},
		{`[{"__org__":"o"},{"m":{"__org__":"o","a":"1"},"v":[1,"2"]}]`, `[{},{"m":{"a":"1"},"v":[1,"2"]}]`},
		{`{"` + strings.Repeat("long", 50) + `\"":"1","__org__":"2","b":"3"}`, `{"` + strings.Repeat("long", 50) + `\"":"1","b":"3"}`},
	} {
		for name, from := range map[string]io.Reader{
			"at once": strings.NewReader(c.text), "byte by byte": iotest.OneByteReader(strings.NewReader(c.text)), "in halves": iotest.HalfReader(strings.NewReader(c.text)),
		} {
			if got, err := filtered(t, from); err != nil || got != c.want {
				t.Errorf("%s of %s is %s, %v; want %s", c.text, name, got, err, c.want)
			}
		}
	}
	for _, bad := range []string{`{"a":1`, `{"a`, `{"__org__":"o`, `}`, `{]`, `[}`, strings.Repeat("[", 17) + strings.Repeat("]", 17)} {
		if got, err := filtered(t, strings.NewReader(bad)); err == nil {
			t.Errorf("%s becomes %s", bad, got)
		}
	}
}

// without removes the hidden label from a decoded JSON value.
func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "__org__")
		for k := range v {
			v[k] = without(v[k])
		}
	case []any:
		for i := range v {
			v[i] = without(v[i])
		}
	}
	return v
}

// FuzzJSONFilter compares with a decoder that reads the complete text.
func FuzzJSONFilter(f *testing.F) {
	f.Add(`{"__org__":"o","a":[{"\u005f_org__":{},"b":"\\\""}]}`, uint8(1))
	f.Fuzz(func(t *testing.T, text string, chunk uint8) {
		var want any
		decoder := json.NewDecoder(strings.NewReader(text))
		if decoder.Decode(&want) != nil || decoder.More() {
			return
		}
		var out bytes.Buffer
		filter := newJSONFilter(&out, nil)
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), int(chunk)+1)
			if _, err := filter.Write(rest[:n]); err != nil {
				return // too deep
			}
			rest = rest[n:]
		}
		if strings.TrimSpace(text)[0] != '{' && strings.TrimSpace(text)[0] != '[' {
			return // the store answers with none of these
		}
		if err := filter.Close(); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var got any
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || !reflect.DeepEqual(got, without(want)) {
			t.Errorf("%q becomes %q, %v", text, out.String(), err)
		}
	})
}

func TestRedactText(t *testing.T) {
	for line, want := range map[string]string{
		`up 1 2`:                                   `up 1 2`,
		`up{__org__="o"} 1 2`:                      `up 1 2`,
		`up{__org__="o",a="1"} 1 2`:                `up{a="1"} 1 2`,
		`up{a="1",__org__="o"} 1 2`:                `up{a="1"} 1 2`,
		`up{a="1",__org__="o",b="2"} 1 2`:          `up{a="1",b="2"} 1 2`,
		`up{a="\"} ,__org__=\"x",__org__="o"} 1 2`: `up{a="\"} ,__org__=\"x"} 1 2`,
		`up{a="\\",__org__="o"} 1 2`:               `up{a="\\"} 1 2`,
		`up{a__org__="1",__org__b="2"} 1 2`:        `up{a__org__="1",__org__b="2"} 1 2`,
	} {
		var out strings.Builder
		if err := redactText(&out, strings.NewReader(line+"\n")); err != nil || out.String() != want+"\n" {
			t.Errorf("%s becomes %s, %v; want %s", line, out.String(), err, want)
		}
	}
	for _, bad := range []string{`up{a`, `up{a=`, `up{a="1`, `up{a="1"`, `up{a=1} 1 2`} {
		if err := redactText(io.Discard, strings.NewReader(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
