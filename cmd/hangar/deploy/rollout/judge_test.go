package rollout

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func event(kind hangar.EventType, status string, source hangar.EventSource, exit *hangar.ExitEvent) hangar.Event {
	e := hangar.Event{Type: kind, Status: status, Source: source}
	if exit != nil {
		e.Request = &hangar.EventRequest{ExitEvent: exit}
	}
	return e
}

// TestJudge has verdicts about one view of a Machine. Events are newest first.
func TestJudge(t *testing.T) {
	t.Parallel()
	launch := event(hangar.EventLaunch, "created", hangar.SourceUser, nil)
	crash := event(hangar.EventExit, "started", hangar.SourceAgent, &hangar.ExitEvent{ExitCode: 7, Restarting: true})
	final := event(hangar.EventExit, "stopped", hangar.SourceAgent, &hangar.ExitEvent{ExitCode: 7})
	good := event(hangar.EventExit, "stopped", hangar.SourceAgent, &hangar.ExitEvent{})
	idle := event(hangar.EventExit, "stopped", hangar.SourceProxy, &hangar.ExitEvent{RequestedStop: true, ExitCode: 130})
	stop := event(hangar.EventStop, "stopping", hangar.SourceProxy, nil)
	byHand := event(hangar.EventStart, "starting", hangar.SourceUser, nil)
	passing, critical := hangar.MachineCheck{Status: hangar.CheckPassing}, hangar.MachineCheck{Status: hangar.CheckCritical}
	for name, test := range map[string]struct {
		m    hangar.Machine
		want verdict
		err  string
	}{
		"starting":           {m: hangar.Machine{State: hangar.MachineStarting}, want: verdict{text: "starting"}},
		"started":            {m: hangar.Machine{State: hangar.MachineStarted, Events: []hangar.Event{launch}}, want: verdict{started: true, healthy: true, text: "started"}},
		"the former one":     {m: hangar.Machine{InstanceID: "01A", State: hangar.MachineStarted}, want: verdict{text: "started"}},
		"checks":             {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStarted, Checks: []hangar.MachineCheck{passing, critical}}, want: verdict{started: true, text: "started, 1 of 2 checks pass"}},
		"one crash":          {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStarted, Events: []hangar.Event{crash, launch}}, want: verdict{started: true, healthy: true, text: "started"}},
		"crash loop":         {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStarting, Events: []hangar.Event{crash, crash, launch}}, err: "its program has ended with code 7"},
		"final crash":        {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStopped, Events: []hangar.Event{final, launch}}, err: "its program has ended with code 7"},
		"crash before":       {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStarted, Events: []hangar.Event{launch, final}}, want: verdict{started: true, healthy: true, text: "started"}},
		"started by hand":    {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStarting, Events: []hangar.Event{byHand, final, launch}}, want: verdict{text: "starting"}},
		"a job":              {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStopped, Events: []hangar.Event{good, launch}}, want: verdict{ended: true, text: "has run to its end"}},
		"idle":               {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStopped, Events: []hangar.Event{idle, stop, launch}}, want: verdict{ended: true, text: "stopped"}},
		"idle after a crash": {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStopped, Events: []hangar.Event{idle, stop, crash, launch}}, want: verdict{ended: true, text: "stopped"}},
		"not prepared yet":   {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineStopped, Events: []hangar.Event{launch}}, want: verdict{text: "stopped"}},
		"cannot start": {
			m:   hangar.Machine{InstanceID: "01B", State: hangar.MachineFailed, Events: []hangar.Event{{Type: hangar.EventStart, Request: &hangar.EventRequest{Error: "no such command"}}, launch}},
			err: "it is failed: no such command",
		},
		"gone": {m: hangar.Machine{InstanceID: "01B", State: hangar.MachineDestroyed}, err: "it is destroyed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := judge(&test.m, "")
			if name == "the former one" {
				got = judge(&test.m, "01B")
			}
			if test.err != "" {
				if got.err == nil || !strings.Contains(got.err.Error(), test.err) {
					t.Errorf("%+v; want %s", got, test.err)
				}
				return
			}
			if got != test.want {
				t.Errorf("%+v; want %+v", got, test.want)
			}
		})
	}
}
