package machines_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/journal"
)

func withSecrets(version int, value string) hangar.SecretValues {
	return hangar.SecretValues{Version: version, Values: map[string]hangar.Sensitive{"TOKEN": hangar.NewSensitive(value)}}
}

// variable is a variable in the environment of a command in a Machine. Without the Machine's
// secrets it does not exist.
func (r *rig) variable(ref hangar.MachineRef, name string) string {
	r.Helper()
	var out bytes.Buffer
	if _, err := r.ExecMachine(r.Context(), ref, hangar.ExecRequest{Command: []string{"env"}}, hangar.ExecStreams{Stdout: &out}); err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}

// sealed returns the versions for which the journal keeps secrets, one entry each. The rig must be
// closed.
func (r *rig) sealed() (versions []hangar.InstanceID) {
	r.Helper()
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{})
	if err != nil {
		r.Fatal(err)
	}
	err = j.AllSecrets(func(batch []journal.SealedSecrets) error {
		for _, s := range batch {
			versions = append(versions, s.Version)
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	if err := j.Close(); err != nil {
		r.Fatal(err)
	}
	return versions
}

func TestSecretsStayWithTheirVersion(t *testing.T) {
	r := newRig(t)
	r.rows.setAway(true) // nothing of what follows needs the cluster state
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.Secrets = withSecrets(3, "plaintext") })
	expect := func(when, want string, version int) {
		t.Helper()
		r.wait(ref, hangar.MachineStarted)
		m, err := r.Machine(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.variable(ref, "TOKEN"); got != want || m.SecretsVersion != version {
			t.Errorf("%s: TOKEN=%q of version %d, want %q of version %d", when, got, m.SecretsVersion, want, version)
		}
	}
	expect("created", "plaintext", 3)
	for _, again := range []func(){r.restart, func() { r.crash(); r.open() }} {
		again()
		expect("after a restart of the daemon", "plaintext", 3)
		if err := r.RestartMachine(t.Context(), ref, hangar.MachineRestart{ForceStop: true}); err != nil {
			t.Fatal(err)
		}
		expect("restarted", "plaintext", 3)
	}
	if text, err := os.ReadFile(filepath.Join(r.dir, "journal.db")); err != nil || bytes.Contains(text, []byte("plaintext")) {
		t.Errorf("the journal holds the plaintext: %v", err)
	}

	before, err := r.Machine(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	lost := before.Config
	lost.Image = "offline"
	if _, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: lost, Secrets: withSecrets(4, "next")}); err != nil {
		t.Fatal(err)
	}
	expect("after an update that failed", "plaintext", 3)
	after, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: before.Config, Secrets: withSecrets(4, "next")})
	if err != nil {
		t.Fatal(err)
	}
	expect("updated", "next", 4)
	r.close()
	if got := r.sealed(); !slices.Equal(got, []hangar.InstanceID{after.InstanceID}) {
		t.Errorf("kept are the secrets of %v, want those of %s", got, after.InstanceID)
	}
	r.open()

	none, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: before.Config})
	if err != nil {
		t.Fatal(err)
	}
	expect("updated without", "", 0)
	if none.SecretsVersion != 0 {
		t.Errorf("answered version %d", none.SecretsVersion)
	}
	if _, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: before.Config, Secrets: withSecrets(5, "last")}); err != nil {
		t.Fatal(err)
	}
	expect("updated again", "last", 5)
	if err := r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}); err != nil {
		t.Fatal(err)
	}
	r.wait(ref, hangar.MachineDestroyed)
	r.close()
	if got := r.sealed(); len(got) != 0 {
		t.Errorf("of a destroyed machine the secrets of %v are kept", got)
	}
	r.open()
}

// TestKillDuringUpdateKeepsSecrets kills the daemon while the old version ends: the new
// one has its secrets.
func TestKillDuringUpdateKeepsSecrets(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.Secrets = withSecrets(1, "old") })
	r.wait(ref, hangar.MachineStarted)
	m, err := r.Machine(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	reached := r.hangAt(fake.OpStop)
	if _, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: m.Config, Secrets: withSecrets(2, "new")}); err != nil {
		t.Fatal(err)
	}
	<-reached
	r.crash()
	r.faults.Store(nil)
	r.open()
	r.wait(ref, hangar.MachineStarted)
	if got := r.variable(ref, "TOKEN"); got != "new" {
		t.Errorf("TOKEN=%q after the update", got)
	}
}

func TestResealSecretsOfMachines(t *testing.T) {
	r := newRig(t)
	const machines = 70 // more than one batch
	var refs []hangar.MachineRef
	for range machines {
		refs = append(refs, r.create(nil, func(s *hangar.MachineSpec) {
			s.Secrets = withSecrets(1, "of "+string(s.ID))
			s.SkipLaunch = true
		}))
	}
	for range 2 {
		done, err := r.keys.Rotate(t.Context(), r.Reseal)
		if err != nil || done.Resealed != machines {
			t.Fatalf("rotated %+v, %v", done, err)
		}
	}
	if n, err := r.Reseal(t.Context()); err != nil || n != 0 {
		t.Errorf("%d values were not of the newest key, %v", n, err)
	}
	r.restart()
	for _, ref := range refs[:3] {
		r.wait(ref, hangar.MachineStopped)
		if _, err := r.StartMachine(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		r.wait(ref, hangar.MachineStarted)
		if got := r.variable(ref, "TOKEN"); got != "of "+string(ref.ID) {
			t.Errorf("TOKEN=%q", got)
		}
	}
}
