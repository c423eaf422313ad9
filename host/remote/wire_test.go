package remote

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// inProcess are the methods that are no calls.
var inProcess = []string{"Host"}

// TestEveryMethodIsKnown walks the interfaces, so that none of their methods is forgotten.
func TestEveryMethodIsKnown(t *testing.T) {
	known, streamed := methods(), streams()
	for method := range reflect.TypeFor[hangar.Agent]().Methods() {
		args := method.Type.NumIn() - 1 // without the context
		m, once := known[method.Name]
		s, streams := streamed[method.Name]
		switch {
		case slices.Contains(inProcess, method.Name):
		case once && m.args != args:
			t.Errorf("%s takes %d arguments, not %d", method.Name, args, m.args)
		case method.Name == "ExecMachine": // its streams are frames
		case streams && s.args != args:
			t.Errorf("%s takes %d arguments, not %d", method.Name, args, s.args)
		case !once && !streams:
			t.Errorf("hosts do not answer %s", method.Name)
		}
	}
	for _, name := range []string{"WakeMachine", "DialService", "DialDatagrams", "OpenMachineFile", "Enter", "OpenPushed"} {
		if _, ok := known[name]; !ok && streamed[name].serve == nil {
			t.Errorf("hosts do not answer %s of gates", name)
		}
	}
}

// TestMethodsHaveTheirNames reads the table, which the compiler does not check.
func TestMethodsHaveTheirNames(t *testing.T) {
	source, err := os.ReadFile("methods.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`"(\w+)": .*agent\.(\w+)`).FindAllStringSubmatch(strings.ReplaceAll(string(source), `":  `, `": `), -1)
	if len(rows) < 40 {
		t.Fatalf("found %d rows of methods.go", len(rows))
	}
	for _, row := range rows {
		if row[1] != row[2] {
			t.Errorf("%s calls %s", row[1], row[2])
		}
	}
}

// filled makes a value of which no part is zero.
func filled(t *testing.T, typ reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(typ).Elem()
	fill(t, v)
	return v
}

func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch p := v.Addr().Interface().(type) {
	case *hangar.MachineConfig:
		c, err := hangar.ParseMachineConfig([]byte(`{"image":"web","env":{"A":"<&>"},"unknown":{"kept":[1]},"services":[{"internal_port":80,"autostop":"suspend","ports":[{"port":80}]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		*p = c
		return
	case *time.Time:
		*p = time.Date(2026, 11, 26, 1, 2, 3, 456789, time.UTC)
		return
	case *netip.Addr:
		*p = netip.MustParseAddr("fdaa::7")
		return
	case *hangar.Sensitive:
		*p = hangar.NewSensitive("hush <>")
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text <&> \u2028 ü")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(17)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(17)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
		fill(t, v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(filled(t, v.Type().Key()), filled(t, v.Type().Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !internalField(v.Type(), f.Name) {
				fill(t, v.Field(i))
			}
		}
	default:
		t.Fatalf("cannot fill a %s", v.Type())
	}
}

// internalField reports whether no host sends a field.
func internalField(typ reflect.Type, name string) bool {
	// Of snapshots in rows, the row says whose they are.
	return typ == reflect.TypeFor[hangar.VolumeRow]() && name == "Snapshots"
}

// streamed are the types that are no values.
func streamed(typ reflect.Type) bool {
	return typ == reflect.TypeFor[hangar.ExecStreams]() || typ.Kind() == reflect.Interface || typ.Kind() == reflect.Func
}

// TestEverythingTravels sends filled and zero values of all arguments and results.
func TestEverythingTravels(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for method := range reflect.TypeFor[hangar.Agent]().Methods() {
		for typ := range method.Type.Ins() {
			seen[typ] = true
		}
		for typ := range method.Type.Outs() {
			seen[typ] = true
		}
	}
	for typ := range seen {
		if streamed(typ) {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			for what, v := range map[string]reflect.Value{"filled": filled(t, typ), "zero": reflect.Zero(typ)} {
				if what == "zero" && hasConfig(typ) {
					continue // control hands over configs that are normalised
				}
				raw, err := encode(v.Interface())
				if err != nil {
					t.Fatal(err)
				}
				got := reflect.New(typ)
				if err := decode(raw, got.Interface()); err != nil {
					t.Fatalf("%s: %v in %s", what, err, raw)
				}
				again, err := encode(got.Elem().Interface())
				if err != nil {
					t.Fatal(err)
				}
				if string(again) != string(raw) {
					t.Errorf("%s: sent %s, got %s", what, raw, again)
				}
				if !hasConfig(typ) && !reflect.DeepEqual(v.Interface(), got.Elem().Interface()) {
					t.Errorf("%s: sent %+v, got %+v", what, v.Interface(), got.Elem().Interface())
				}
			}
		})
	}
}

// hasConfig reports whether a type has the config of a Machine, whose document and not whose memory
// is the same.
func hasConfig(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return hasConfig(typ.Elem())
	case reflect.Struct:
		_, config := typ.FieldByName("Config")
		return config
	default:
		return false
	}
}

// TestSecretsTravel is what the JSON of the API hides.
func TestSecretsTravel(t *testing.T) {
	secrets := hangar.SecretValues{Version: 3, Values: map[string]hangar.Sensitive{"KEY": hangar.NewSensitive("hush"), "EMPTY": hangar.NewSensitive("")}}
	raw, err := encode(hangar.MachineSpec{Name: "web", Secrets: secrets})
	var spec hangar.MachineSpec
	if err == nil {
		err = decode(raw, &spec)
	}
	if err != nil || !reflect.DeepEqual(spec.Secrets, secrets) || spec.Name != "web" {
		t.Errorf("got %v %v", spec.Secrets.Values["KEY"].Reveal(), err)
	}
	raw, err = encode(hangar.MachineUpdate{Name: "web", Secrets: secrets})
	var update hangar.MachineUpdate
	if err == nil {
		err = decode(raw, &update)
	}
	if err != nil || !reflect.DeepEqual(update.Secrets, secrets) || update.Name != "web" {
		t.Errorf("got %v %v", update.Secrets.Values["KEY"].Reveal(), err)
	}
}

// TestEveryClientCallIsWhatItSays calls all methods that return once on a host that records.
func TestEveryClientCallIsWhatItSays(t *testing.T) {
	type recorded struct {
		name string
		call call
	}
	var got recorded
	var result []byte
	p := newPeer(t.Context(), hangar.Host{ID: "0000bbbb", Address: "peer:1"}, roundTripper(func(r *http.Request) (*http.Response, error) {
		x := &served{name: strings.TrimPrefix(r.URL.Path, Path), r: r}
		known := methods()
		if err := x.read(known[x.name].args); err != nil {
			return nil, err
		}
		got = recorded{x.name, x.call}
		pr, pw := io.Pipe()
		go func() { _ = pw.CloseWithError(writeFrame(pw, kindResult, result)) }()
		return &http.Response{StatusCode: http.StatusOK, Body: pr}, nil
	}))
	t.Cleanup(p.close)
	client := reflect.ValueOf(hangar.Agent(agent{p}))
	ctx, cancel := context.WithTimeout(hangar.WithEventSource(hangar.WithLeaseNonce(
		hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "me"}), "n0nce"), hangar.SourceProxy), time.Minute)
	defer cancel()
	for method := range reflect.TypeFor[hangar.Agent]().Methods() {
		if _, once := methods()[method.Name]; !once {
			continue
		}
		in := []reflect.Value{reflect.ValueOf(ctx)}
		for i := 1; i < method.Type.NumIn(); i++ {
			in = append(in, filled(t, method.Type.In(i)))
		}
		result = []byte("{}")
		var want []byte
		if method.Type.NumOut() == 2 {
			raw, err := encode(filled(t, method.Type.Out(0)).Interface())
			if err != nil {
				t.Fatal(err)
			}
			result, want = raw, raw
		}
		out := client.MethodByName(method.Name).Call(in)
		if err := out[len(out)-1]; !err.IsNil() {
			t.Errorf("%s: %v", method.Name, err.Interface())
			continue
		}
		if got.name != method.Name {
			t.Errorf("%s calls %s", method.Name, got.name)
		}
		for i, raw := range got.call.Args {
			if sent, err := encode(in[i+1].Interface()); err != nil || string(sent) != string(raw) {
				t.Errorf("%s: argument %d is %s, not %s", method.Name, i, raw, sent)
			}
		}
		if len(out) == 2 {
			if answered, err := encode(out[0].Interface()); err != nil || string(answered) != string(want) {
				t.Errorf("%s returns %s, not %s", method.Name, answered, want)
			}
		}
		if c := got.call; c.Subject != "me" || c.Nonce != "n0nce" || c.Source != hangar.SourceProxy || c.Timeout <= 0 || c.Timeout > time.Minute.Milliseconds() {
			t.Errorf("%s: the host learns of the caller: %+v", method.Name, c)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestErrorsTravel(t *testing.T) {
	for _, code := range hangar.Codes() {
		sent := &hangar.Error{Code: code, Reason: "reason", Message: "message <&>", Err: io.ErrUnexpectedEOF}
		raw, err := encode(faultOf(sent))
		if err != nil {
			t.Fatal(err)
		}
		got := rebuilt(raw)
		if hangar.CodeOf(got) != code || hangar.ReasonOf(got) != "reason" || hangar.MessageOf(got) != "message <&>" || got.Error() != "message <&>" {
			t.Errorf("sent %v, got %v", sent, got)
		}
	}
	raw, err := encode(faultOf(context.DeadlineExceeded))
	if err != nil || hangar.CodeOf(rebuilt(raw)) != hangar.CodeTimeout {
		t.Errorf("got %v %v", rebuilt(raw), err)
	}
}
