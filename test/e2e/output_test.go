package e2e

import (
	"slices"
	"strconv"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// lastWords is a program that, after a signal, continues quietly for a moment, and then prints much
// and ends.
const lastWords = `
while [ ! -e /var/tmp/go ]; do sleep 0.1; done
sleep 15
seq 1 20000
echo "panic: oh no" >&2
exit 3`

// TestLastWordsWhileTheDaemonIsDown: a Machine's output before its end is in its log, once,
// although there was no reader.
func TestLastWordsWhileTheDaemonIsDown(t *testing.T) {
	p := start(t)
	img := build(t, debian.Recipe{Packages: []string{"base-files"}, Version: "cat /etc/debian_version", Config: v1.Config{
		Cmd: []string{"sh", "-c", lastWords}, Env: software.Path,
	}})
	ref := p.push(t, img, "last-words:1")
	kept := p.run(t, "kept", hangar.MachineConfig{Image: ref, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}})
	removed := p.run(t, "removed", hangar.MachineConfig{
		Image: ref, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}, AutoDestroy: true,
	})
	all := []*machine{kept, removed}
	tokens := make([]string, len(all))
	for i, m := range all {
		page, err := p.c.Logs(t.Context(), app, hangar.LogQuery{Instance: m.ref.ID})
		if err != nil {
			t.Fatal(err)
		}
		tokens[i] = page.Next
		m.exec(t, "touch", "/var/tmp/go")
	}
	p.d.Kill()
	if ids, err := daemon.Sandboxes(p.d.Dir()); err != nil || len(ids) != len(all) {
		t.Fatalf("the Machines ended too early: %v, %v", ids, err)
	}
	p.untilAllEnd(t)
	p.d.Up()
	kept.wait(t, hangar.MachineStopped)
	removed.wait(t, hangar.MachineDestroyed)
	want := make([]string, 0, 20001)
	for n := range 20000 {
		want = append(want, strconv.Itoa(n+1))
	}
	want = append(want, "panic: oh no")
	for i, m := range all {
		if got := m.output(t, tokens[i]); !slices.Equal(got, want) {
			t.Errorf("%s wrote %d lines, and %d are in its log", m.ref.ID, len(want), len(got))
		}
	}
}

// output returns what the Machine's own program wrote since a token.
func (m *machine) output(t *testing.T, token string) (lines []string) {
	t.Helper()
	for {
		page, err := m.p.c.Logs(t.Context(), app, hangar.LogQuery{Instance: m.ref.ID, Token: token, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) == 0 {
			return lines
		}
		for _, e := range page.Entries {
			if e.Provider == hangar.LogApp {
				lines = append(lines, e.Message)
			}
		}
		token = page.Next
	}
}
