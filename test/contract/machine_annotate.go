package contract

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// wantMetadata checks the metadata of a Machine wherever it shows.
func (h Harness) wantMetadata(t *testing.T, after string, ref hangar.MachineRef, want map[string]string) {
	t.Helper()
	got, err := h.Machines.MachineMetadata(h.Context(t), ref)
	must(t, "metadata", err)
	if !maps.Equal(got, want) {
		t.Errorf("after %s, metadata is %v, want %v", after, got, want)
	}
	m := h.get(t, ref)
	if !maps.Equal(m.Config.Metadata, want) {
		t.Errorf("after %s, metadata of the config is %v, want %v", after, m.Config.Metadata, want)
	}
}

func machineMetadata(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	config := h.config()
	config.Metadata = map[string]string{"role": "web"}
	m := h.create(t, app, hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	before := h.get(t, m.Ref())
	h.wantMetadata(t, "create", m.Ref(), map[string]string{"role": "web"})

	long := strings.Repeat("v", hangar.MaxMetadataValueBytes)
	for _, step := range []struct {
		name string
		do   func() error
		want map[string]string
	}{
		{"set", func() error {
			return h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "fly_process_group", Value: "app"})
		}, map[string]string{"role": "web", "fly_process_group": "app"}},
		{"set again", func() error {
			return h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "role", Value: "db"})
		}, map[string]string{"role": "db", "fly_process_group": "app"}},
		{"set to nothing", func() error {
			return h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "empty"})
		}, map[string]string{"role": "db", "fly_process_group": "app", "empty": ""}},
		{"remove", func() error {
			return h.Machines.RemoveMachineMetadata(ctx, m.Ref(), "empty")
		}, map[string]string{"role": "db", "fly_process_group": "app"}},
		{"remove a missing key", func() error {
			return h.Machines.RemoveMachineMetadata(ctx, m.Ref(), "empty")
		}, map[string]string{"role": "db", "fly_process_group": "app"}},
		{"merge", func() error {
			return h.Machines.MergeMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{
				Pairs: map[string]string{"role": "", "a/b c&=%?": "<&>\n\"ü", "long": long}, Version: m.InstanceID,
			})
		}, map[string]string{"fly_process_group": "app", "a/b c&=%?": "<&>\n\"ü", "long": long}},
		{"set a key that must be escaped", func() error {
			return h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "a/b c&=%?", Value: "plain"})
		}, map[string]string{"fly_process_group": "app", "a/b c&=%?": "plain", "long": long}},
		{"remove a key that must be escaped", func() error {
			return h.Machines.RemoveMachineMetadata(ctx, m.Ref(), "a/b c&=%?")
		}, map[string]string{"fly_process_group": "app", "long": long}},
		{"replace", func() error {
			return h.Machines.ReplaceMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{Pairs: map[string]string{"one": "1", "none": ""}})
		}, map[string]string{"one": "1"}},
		{"replace by nothing", func() error {
			return h.Machines.ReplaceMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{})
		}, map[string]string{}},
	} {
		must(t, step.name, step.do())
		h.wantMetadata(t, step.name, m.Ref(), step.want)
	}

	after := h.get(t, m.Ref())
	if after.InstanceID != before.InstanceID || after.State != before.State || len(after.Events) != len(before.Events) {
		t.Errorf("metadata left the machine %s at %s with %d events, was %s at %s with %d",
			after.State, after.InstanceID, len(after.Events), before.State, before.InstanceID, len(before.Events))
	}
	versions, err := h.Machines.MachineVersions(ctx, m.Ref())
	must(t, "versions", err)
	if len(versions) != 1 || versions[0].Config.Metadata["role"] != "web" {
		t.Errorf("versions are %+v, want the one as it was sent", versions)
	}
}

func machineMetadataList(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	m := h.stopped(t, app)
	h.stopped(t, app)
	list := func(key, value string) int {
		t.Helper()
		found, err := h.Machines.Machines(ctx, app, hangar.MachineFilter{Metadata: map[string]string{key: value}})
		must(t, "list", err)
		return len(found)
	}
	for i := range 5 {
		value := fmt.Sprint(i)
		must(t, "set", h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "n", Value: value}))
		if got := list("n", value); got != 1 {
			t.Errorf("%d machines have what was just set, want 1", got)
		}
	}
	must(t, "remove", h.Machines.RemoveMachineMetadata(ctx, m.Ref(), "n"))
	if got := list("n", "4"); got != 0 {
		t.Errorf("%d machines have what was just removed", got)
	}
}

func machineMetadataOrder(t *testing.T, h Harness) {
	ctx := h.Context(t)
	m := h.stopped(t, h.newApp(t))
	now := time.Now()
	set := func(key, value string, at time.Time) {
		t.Helper()
		must(t, "set", h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: key, Value: value, UpdatedAt: at}))
	}
	set("a", "new", now.Add(-time.Second)) // after the machine was made, by its own clock or not
	must(t, "replace", h.Machines.ReplaceMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{
		Pairs: map[string]string{"a": "1", "b": "1"}, UpdatedAt: now.Add(-time.Minute),
	}))
	set("a", "late", now.Add(-time.Hour))
	set("b", "2", time.Time{})
	set("c", "future", now.Add(24*time.Hour))
	set("c", "2", time.Time{})
	must(t, "a late merge", h.Machines.MergeMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{
		Pairs: map[string]string{"b": "late", "c": ""}, UpdatedAt: now.Add(-time.Hour),
	}))
	got, err := h.Machines.MachineMetadata(ctx, m.Ref())
	must(t, "metadata", err)
	if got["a"] == "late" || got["b"] != "2" || got["c"] != "2" {
		t.Errorf("metadata is %v: a later decision was overwritten by an earlier one", got)
	}
}

func machineMetadataRefused(t *testing.T, h Harness) {
	ctx := h.Context(t)
	m := h.stopped(t, h.newApp(t))
	merge := func(pairs map[string]string) error {
		return h.Machines.MergeMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{Pairs: pairs})
	}
	must(t, "merge", merge(map[string]string{"kept": "yes"}))
	many := map[string]string{}
	for i := range hangar.MaxMetadataKeys {
		many[fmt.Sprint(i)] = "x"
	}
	for name, err := range map[string]error{
		"an empty key":       merge(map[string]string{"": "x"}),
		"a long key":         merge(map[string]string{strings.Repeat("k", hangar.MaxMetadataKeyBytes+1): "x"}),
		"a long value":       merge(map[string]string{"k": strings.Repeat("v", hangar.MaxMetadataValueBytes+1)}),
		"control characters": merge(map[string]string{"a\nb": "x"}),
		"one key too many":   merge(many),
		"set an empty key":   h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Value: "x"}),
		"set a long value":   h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "k", Value: strings.Repeat("v", hangar.MaxMetadataValueBytes+1)}),
	} {
		wantError(t, name, err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	}
	stale := hangar.MetadataWrite{Pairs: map[string]string{"a": "b"}, Version: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
	wantError(t, "merge of a stale version", h.Machines.MergeMachineMetadata(ctx, m.Ref(), stale), hangar.CodeFailedPrecondition, hangar.ReasonStaleVersion)
	wantError(t, "replace of a stale version", h.Machines.ReplaceMachineMetadata(ctx, m.Ref(), stale), hangar.CodeFailedPrecondition, hangar.ReasonStaleVersion)
	h.wantMetadata(t, "refusals", m.Ref(), map[string]string{"kept": "yes"})
}

func machineMetadataConcurrent(t *testing.T, h Harness) {
	ctx := h.Context(t)
	m := h.stopped(t, h.newApp(t))
	const writers, writes = 8, 8
	errs := make(chan error, writers*writes)
	want := map[string]string{}
	var group sync.WaitGroup
	for w := range writers {
		want[fmt.Sprint(w)] = fmt.Sprint(writes - 1)
		group.Go(func() {
			for n := range writes {
				errs <- h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: fmt.Sprint(w), Value: fmt.Sprint(n)})
			}
		})
	}
	group.Wait()
	for range cap(errs) {
		must(t, "one of several writes", <-errs)
	}
	h.wantMetadata(t, "concurrent writes", m.Ref(), want)
}

// machineMetadataBoot writes while a Machine boots, which must not notice.
func machineMetadataBoot(t *testing.T, h Harness) {
	ctx := h.Context(t)
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: h.config()})
	for i := range 20 {
		must(t, "set", h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "n", Value: fmt.Sprint(i)}))
		must(t, "cordon", h.Machines.CordonMachine(ctx, m.Ref()))
		must(t, "uncordon", h.Machines.UncordonMachine(ctx, m.Ref()))
	}
	h.wait(t, m.Ref(), hangar.MachineStarted)
	starts := 0
	events, err := h.Machines.MachineEvents(ctx, m.Ref(), 50)
	must(t, "events", err)
	for _, e := range events {
		if e.Type == hangar.EventStart && e.Status == string(hangar.MachineStarted) {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("a machine that was written to while it booted started %d times", starts)
	}
	h.wantMetadata(t, "the boot", m.Ref(), map[string]string{"n": "19"})
}

func machineMetadataUpdate(t *testing.T, h Harness) {
	ctx := h.Context(t)
	m := h.started(t, h.newApp(t))
	must(t, "set", h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "old", Value: "1"}))
	config := h.get(t, m.Ref()).Config
	config.Metadata = map[string]string{"sent": "1"}
	updated, err := h.Machines.UpdateMachine(ctx, m.Ref(), hangar.MachineUpdate{Config: config})
	must(t, "update", err)
	must(t, "set", h.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "new", Value: "1"}))
	_, err = h.Machines.WaitMachine(ctx, m.Ref(), hangar.MachineWait{Instance: updated.InstanceID, Timeout: patience})
	must(t, "wait for the new version", err)
	h.wantMetadata(t, "an update", m.Ref(), map[string]string{"sent": "1", "new": "1"})
	versions, err := h.Machines.MachineVersions(ctx, m.Ref())
	must(t, "versions", err)
	if len(versions) != 2 || !maps.Equal(versions[0].Config.Metadata, map[string]string{"sent": "1"}) || len(versions[1].Config.Metadata) != 0 {
		t.Errorf("versions are %+v, want both as they were sent", versions)
	}
}

func machineCordon(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	m := h.started(t, app)
	started := h.get(t, m.Ref()).Events[0].ID
	for range 2 {
		must(t, "cordon", h.Machines.CordonMachine(ctx, m.Ref()))
		if got := h.get(t, m.Ref()); !got.Cordoned || got.State != hangar.MachineStarted {
			t.Errorf("after cordon the machine is %s, cordoned: %t", got.State, got.Cordoned)
		}
	}
	r := h.wait(t, m.Ref(), hangar.MachineStarted)
	if r.EventID != started {
		t.Errorf("a wait names event %s, want %s, which brought the state", r.EventID, started)
	}
	_, err := h.Machines.WaitMachine(ctx, m.Ref(), hangar.MachineWait{FromEvent: started, Timeout: time.Millisecond})
	wantError(t, "wait for a start after the last", err, hangar.CodeTimeout, hangar.ReasonWaitTimeout)
	for range 2 {
		must(t, "uncordon", h.Machines.UncordonMachine(ctx, m.Ref()))
		if got := h.get(t, m.Ref()); got.Cordoned || got.State != hangar.MachineStarted {
			t.Errorf("after uncordon the machine is %s, cordoned: %t", got.State, got.Cordoned)
		}
	}
	got := h.get(t, m.Ref())
	if e := got.Events; e[0].Type != hangar.EventUncordon || e[1].Type != hangar.EventCordon || e[2].ID != started {
		t.Errorf("newest events are %+v, want one uncordon and one cordon", e[:3])
	}
	must(t, "cordon", h.Machines.CordonMachine(ctx, m.Ref()))
	must(t, "stop", h.Machines.StopMachine(ctx, m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err = h.Machines.StartMachine(ctx, m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	if !h.get(t, m.Ref()).Cordoned {
		t.Error("stop and start ended the cordon")
	}

	created := h.create(t, app, hangar.MachineCreate{Config: h.config(), SkipLaunch: true, SkipServiceRegistration: true})
	h.wait(t, created.Ref(), hangar.MachineStopped)
	if !created.Cordoned {
		t.Error("skip_service_registration did not create the machine cordoned")
	}
	must(t, "uncordon", h.Machines.UncordonMachine(ctx, created.Ref()))
	updated, err := h.Machines.UpdateMachine(ctx, created.Ref(), hangar.MachineUpdate{Config: h.config(), SkipServiceRegistration: true})
	must(t, "update", err)
	if !updated.Cordoned {
		t.Error("skip_service_registration of an update did not cordon the machine")
	}
}
