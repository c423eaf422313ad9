package view

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
)

// summarize is what writeSummary writes.
func summarize(m *hangar.Machine) MachineSummary {
	return MachineSummary{
		ID: m.ID, Name: m.Name, App: m.App, State: m.State, Region: m.Region, Host: m.Host,
		InstanceID: m.InstanceID, Version: m.InstanceID, ImageRef: OfImageRef(m.ImageRef), PrivateIP: m.PrivateIP,
		CreatedAt: Time(m.CreatedAt), UpdatedAt: Time(m.UpdatedAt), Cordoned: m.Cordoned,
	}
}

// TestMachinesAreWrittenAsByEncodingJSON fills every field that exists, so that it also finds new ones
// that are not written.
func TestMachinesAreWrittenAsByEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*hangar.Machine
		var views []Machine
		var summaries []MachineSummary
		for range rapid.IntRange(0, 3).Draw(t, "machines") {
			m := new(hangar.Machine)
			draw(t, reflect.ValueOf(m).Elem())
			m.Config = drawConfig(t)
			v, err := OfMachine(m)
			if err != nil {
				t.Fatal(err)
			}
			list, views, summaries = append(list, m), append(views, v), append(summaries, summarize(m))
		}
		same(t, MachineBodies(list), OrEmpty(views))
		same(t, SummaryBodies(list), OrEmpty(summaries))
		for i, m := range list {
			same(t, MachineBody{m}, views[i])
		}
	})
}

// same fails if two bodies differ in a byte.
func same(t *rapid.T, got Writer, want any) {
	var b bytes.Buffer
	if err := Encode(&b, got); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := Encode(&text, want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), text.Bytes()) {
		t.Fatalf("%T is written as\n%s\nencoding/json writes\n%s", got, b.Bytes(), text.Bytes())
	}
}

func drawConfig(t *rapid.T) hangar.MachineConfig {
	document := rapid.SampledFrom([]string{
		`{"image":"a"}`,
		`{"image":"a","y":"<&>\u2028","x":{"y":1.50},"env":{"A":"\"é\u0001"},"services":[{"internal_port":80,"autostop":"stop"}],"metadata":{"k":"v"}}`,
	}).Draw(t, "config")
	c, err := hangar.ParseMachineConfig([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	switch rapid.SampledFrom([]string{"sent", "sealed", "changed", "built"}).Draw(t, "config is") {
	case "sealed":
		err = c.Seal()
	case "changed":
		err = c.Seal()
		c.Image = rapid.String().Draw(t, "image")
	case "built":
		c = hangar.MachineConfig{Image: "b"}
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// draw fills a value, sometimes with nothing.
func draw(t *rapid.T, v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		at := time.Unix(rapid.Int64Range(-1<<35, 1<<37).Draw(t, "time"), rapid.Int64Range(0, 999_999_999).Draw(t, "fraction"))
		v.Set(reflect.ValueOf(at.In(time.FixedZone("", 3600))))
		return
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("fdaa:0:1::3"), netip.MustParseAddr("10.0.0.1")}).Draw(t, "address")))
		return
	case reflect.TypeFor[hangar.MachineConfig]():
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.OneOf(rapid.StringMatching(`[ -~]{0,20}`), rapid.String(), rapid.SampledFrom([]string{"", "\xff", "\u2028<&>"})).Draw(t, "text"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(-1<<31, 1<<31-1).Draw(t, "number"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "flag"))
	case reflect.Struct:
		for _, f := range v.Fields() {
			draw(t, f)
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			draw(t, v.Elem())
		}
	case reflect.Slice:
		if n := rapid.IntRange(-1, 3).Draw(t, "length"); n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			draw(t, v.Index(i))
		}
	case reflect.Map:
		if n := rapid.IntRange(-1, 2).Draw(t, "size"); n >= 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				draw(t, key)
				draw(t, value)
				v.SetMapIndex(key, value)
			}
		}
	default:
		t.Fatalf("no idea how to draw a %s", v.Type())
	}
}
