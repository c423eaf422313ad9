package contract

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
)

// SecretService checks an implementation of hangar.SecretService, and what the Machines
// get of it.
func SecretService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"set and unset":     secretsSet,
		"one by one":        secretsOne,
		"bad input":         secretsBadInput,
		"at most so much":   secretsSize,
		"versions":          secretsVersions,
		"many at once":      secretsAtOnce,
		"app destroyed":     secretsAppDestroyed,
		"machines get them": secretsOfMachines,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func values(pairs ...string) map[string]hangar.Sensitive {
	m := map[string]hangar.Sensitive{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = hangar.NewSensitive(pairs[i+1])
	}
	return m
}

func (h Harness) setSecrets(t *testing.T, app hangar.AppName, set map[string]hangar.Sensitive) hangar.Secrets {
	t.Helper()
	all, err := h.Secrets.SetSecrets(h.Context(t), app, set)
	must(t, "set secrets", err)
	return all
}

// shown are the secrets of an App with their values.
func (h Harness) shown(t *testing.T, app hangar.AppName) map[string]string {
	t.Helper()
	all, err := h.Secrets.Secrets(h.Context(t), app, hangar.SecretQuery{Show: true})
	must(t, "show secrets", err)
	got := map[string]string{}
	for _, s := range all.List {
		got[s.Name] = s.Value.Reveal()
	}
	return got
}

var digestShape = regexp.MustCompile(`^[0-9a-f]{16}$`)

func secretsSet(t *testing.T, h Harness) {
	app := h.newApp(t)
	all, err := h.Secrets.Secrets(h.Context(t), app, hangar.SecretQuery{})
	must(t, "list none", err)
	if len(all.List) != 0 || all.Version != 0 {
		t.Errorf("an app without secrets has %+v", all)
	}
	all = h.setSecrets(t, app, values("B", "two", "A", "one", "EMPTY", "", "MULTI", "a\nb \"c\" ü"))
	var names []string
	for _, s := range all.List {
		names = append(names, s.Name)
		if !s.Value.IsZero() {
			t.Errorf("the value of %s is shown", s.Name)
		}
		if !digestShape.MatchString(s.Digest) || s.CreatedAt.IsZero() || s.UpdatedAt.IsZero() {
			t.Errorf("incomplete: %+v", s)
		}
	}
	if want := []string{"A", "B", "EMPTY", "MULTI"}; !slices.Equal(names, want) || all.Version != 1 {
		t.Errorf("%v at version %d, want %v at 1", names, all.Version, want)
	}
	again := h.setSecrets(t, app, values("A", "one"))
	if again.Version != 1 {
		t.Errorf("what is so already makes version %d", again.Version)
	}
	next := h.setSecrets(t, app, map[string]hangar.Sensitive{"A": hangar.NewSensitive("other"), "B": {}, "GONE": {}})
	if next.Version != 2 || len(next.List) != 3 || next.List[0].Digest == all.List[0].Digest {
		t.Errorf("after a change: %+v", next)
	}
	back := h.setSecrets(t, app, values("A", "one"))
	if back.List[0].Digest != all.List[0].Digest || back.Version != 3 {
		t.Errorf("the same value has another digest: %+v, had %+v", back, all)
	}
	if got, want := h.shown(t, app), map[string]string{"A": "one", "EMPTY": "", "MULTI": "a\nb \"c\" ü"}; !maps.Equal(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}
}

func secretsOne(t *testing.T, h Harness) {
	app := h.newApp(t)
	_, err := h.Secrets.Secret(h.Context(t), app, "KEY", hangar.SecretQuery{})
	wantError(t, "get a missing one", err, hangar.CodeNotFound, hangar.ReasonSecretNotFound)
	_, err = h.Secrets.DeleteSecret(h.Context(t), app, "KEY")
	wantError(t, "delete a missing one", err, hangar.CodeNotFound, hangar.ReasonSecretNotFound)
	h.setSecrets(t, app, values("KEY", "value"))
	got, err := h.Secrets.Secret(h.Context(t), app, "KEY", hangar.SecretQuery{})
	must(t, "get", err)
	if got.Name != "KEY" || !got.Value.IsZero() {
		t.Errorf("got %+v", got)
	}
	got, err = h.Secrets.Secret(h.Context(t), app, "KEY", hangar.SecretQuery{Show: true})
	must(t, "show", err)
	if got.Value.Reveal() != "value" {
		t.Errorf("shown %q", got.Value.Reveal())
	}
	version, err := h.Secrets.DeleteSecret(h.Context(t), app, "KEY")
	must(t, "delete", err)
	if version != 2 || len(h.shown(t, app)) != 0 {
		t.Errorf("deleted at version %d, left %q", version, h.shown(t, app))
	}
	missing := uniqueName()
	_, err = h.Secrets.Secrets(h.Context(t), missing, hangar.SecretQuery{})
	wantError(t, "list of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Secrets.SetSecrets(h.Context(t), missing, values("A", "b"))
	wantError(t, "set of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func secretsBadInput(t *testing.T, h Harness) {
	app := h.newApp(t)
	for name, value := range map[string]string{
		"": "x", "1ST": "x", "WITH-DASH": "x", "WITH SPACE": "x", "A=B": "x", "ÜML": "x", "A/B": "x", strings.Repeat("A", hangar.MaxSecretName+1): "x",
		"NUL": "a\x00b",
	} {
		_, err := h.Secrets.SetSecrets(h.Context(t), app, values("GOOD", "hidden", name, value))
		wantError(t, fmt.Sprintf("set %.20q", name), err, hangar.CodeInvalid, "")
		if err != nil && (!strings.Contains(err.Error(), "values") || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%.20q: the error is %v", name, err)
		}
	}
	if got := h.shown(t, app); len(got) != 0 {
		t.Errorf("a refused change left %q", got)
	}
}

func secretsSize(t *testing.T, h Harness) {
	app := h.newApp(t)
	h.setSecrets(t, app, values("A", strings.Repeat("a", hangar.MaxSecretsSize/2), "B", strings.Repeat("b", hangar.MaxSecretsSize/2-len("AB"))))
	_, err := h.Secrets.SetSecrets(h.Context(t), app, values("C", ""))
	wantError(t, "set one byte too many", err, hangar.CodeInvalid, "")
	h.setSecrets(t, app, map[string]hangar.Sensitive{"B": {}, "C": hangar.NewSensitive("c")})
}

func secretsVersions(t *testing.T, h Harness) {
	app := h.newApp(t)
	h.setSecrets(t, app, values("A", "1"))
	for least := range 2 {
		_, err := h.Secrets.Secrets(h.Context(t), app, hangar.SecretQuery{MinVersion: least})
		must(t, "list", err)
	}
	_, err := h.Secrets.Secrets(h.Context(t), app, hangar.SecretQuery{MinVersion: 2})
	wantError(t, "list a version to come", err, hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion)
	_, err = h.Secrets.Secret(h.Context(t), app, "A", hangar.SecretQuery{MinVersion: 2})
	wantError(t, "get of a version to come", err, hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion)
}

func secretsAtOnce(t *testing.T, h Harness) {
	app := h.newApp(t)
	ctx := h.Context(t)
	const writers = 8
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			if _, err := h.Secrets.SetSecrets(ctx, app, values(fmt.Sprintf("S%d", n), "x")); err != nil {
				t.Errorf("set %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	all, err := h.Secrets.Secrets(ctx, app, hangar.SecretQuery{})
	must(t, "list", err)
	if len(all.List) != writers || all.Version != writers {
		t.Errorf("%d changes at once made %d secrets at version %d", writers, len(all.List), all.Version)
	}
}

func secretsAppDestroyed(t *testing.T, h Harness) {
	app := h.newApp(t)
	h.setSecrets(t, app, values("A", "1"))
	must(t, "destroy", h.Apps.DestroyApp(h.Context(t), app, true))
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	must(t, "create again", err)
	all, err := h.Secrets.Secrets(h.Context(t), app, hangar.SecretQuery{})
	must(t, "list", err)
	if len(all.List) != 0 || all.Version != 0 {
		t.Errorf("a new app of an old name has the secrets %+v", all)
	}
}

// secretsOfMachines checks which version Machines get; that of the values is a matter
// of hosts.
func secretsOfMachines(t *testing.T, h Harness) {
	app := h.newApp(t)
	before := h.stopped(t, app)
	h.setSecrets(t, app, values("A", "1"))
	expect := func(what string, m *hangar.Machine, want int) {
		t.Helper()
		if m.SecretsVersion != want {
			t.Errorf("%s has secrets of version %d, want %d", what, m.SecretsVersion, want)
		}
	}
	expect("a machine of before", h.get(t, before.Ref()), 0)
	wish := hangar.MachineCreate{Config: h.config(), SkipLaunch: true, MinSecretsVersion: 1}
	m := h.create(t, app, wish)
	expect("a new machine", m, 1)
	h.wait(t, m.Ref(), hangar.MachineStopped)
	h.setSecrets(t, app, values("A", "2"))
	expect("after a change", h.get(t, m.Ref()), 1)

	_, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), MinSecretsVersion: 3})
	wantError(t, "update with a version to come", err, hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion)
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), MinSecretsVersion: -1})
	wantError(t, "update with a negative version", err, hangar.CodeInvalid, "")
	wish.MinSecretsVersion = 3
	_, err = h.Machines.CreateMachine(h.Context(t), app, wish)
	wantError(t, "create with a version to come", err, hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion)

	updated, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), MinSecretsVersion: 2})
	must(t, "update", err)
	expect("an updated machine", updated, 2)
	h.wait(t, m.Ref(), hangar.MachineStopped)
	updated, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), SkipSecrets: true})
	must(t, "update without secrets", err)
	expect("a machine updated without secrets", updated, 0)
	h.wait(t, m.Ref(), hangar.MachineStopped)
}
