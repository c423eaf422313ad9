package control_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/racetest"
)

const (
	envRotateIn  = "CONTROL_TEST_ROTATE_IN"  // a directory: rotate the key of what is in it
	envDieBefore = "CONTROL_TEST_DIE_BEFORE" // and kill yourself before the step of this number
	rotatedNames = 20
)

// dyingStore kills its process before the n-th transaction.
type dyingStore struct {
	state.Store
	left *int
}

func (s dyingStore) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	step(s.left)
	return s.Store.Txn(ctx, txn)
}

func step(left *int) {
	if *left--; *left < 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// dyingResealer is a host that holds nothing: it dies after the state was re-encrypted,
// and before the old key is dropped.
type dyingResealer struct{ left *int }

func (r dyingResealer) Reseal(context.Context) (int, error) {
	step(r.left)
	return 0, nil
}

// rotateAndDie is what the child process does.
func rotateAndDie(dir string) error {
	left, err := strconv.Atoi(os.Getenv(envDieBefore))
	if err != nil {
		return err
	}
	ctx := context.Background()
	store, err := state.OpenEtcd(ctx, state.EtcdConfig{Dir: filepath.Join(dir, "state"), Log: quiet})
	if err != nil {
		return err
	}
	keys, err := keyset.Open(filepath.Join(dir, keyset.File))
	if err != nil {
		return err
	}
	open := 1 << 30 // opening is no step
	c := control.New(control.Config{
		Store: dyingStore{store, &open}, Tokens: auth.New(auth.Config{Store: store, Dir: dir}), Agents: fleet{newFakeHost("aaaaaaaa", "loc")}, Keys: keys,
		Sealed: []hangar.Resealer{dyingResealer{&open}, dyingResealer{&open}}, Region: "loc", Log: quiet,
	})
	if err := c.Open(ctx); err != nil {
		return err
	}
	open = left
	_, err = c.Encryption().RotateEncryptionKey(hangar.WithPrincipal(ctx, hangar.Principal{Admin: true}))
	return errors.Join(err, store.Close())
}

// TestKillWhileRotating kills the process before every step of a rotation, one after
// the other: at all times everything can be read, and the next start ends what was
// begun.
func TestKillWhileRotating(t *testing.T) {
	racetest.Skip(t)
	dir := t.TempDir()
	use := func(f func(p *plane)) {
		t.Helper()
		store, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: filepath.Join(dir, "state"), Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		keys, err := keyset.Open(filepath.Join(dir, keyset.File))
		if errors.Is(err, os.ErrNotExist) {
			keys, err = keyset.Create(filepath.Join(dir, keyset.File))
		}
		if err != nil {
			t.Fatal(err)
		}
		p := &plane{store: store, dir: t.TempDir(), hosts: fleet{newFakeHost("aaaaaaaa", "loc")}, keys: keys, clock: &clock{}}
		interrupted := keys.Interrupted()
		p.restart(t)
		if keys.Interrupted() {
			t.Errorf("still two keys after a start; interrupted before: %t", interrupted)
		}
		f(p)
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use(func(p *plane) {
		for i := range rotatedNames {
			p.login(t, fmt.Sprintf("r%d.example", i), "me", fmt.Sprint("pass", i))
		}
	})
	interrupted := 0
	for before := 0; ; before++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), envRotateIn+"="+dir, envDieBefore+"="+strconv.Itoa(before))
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child: %v\n%s", err, out)
		}
		interrupted++
		use(func(p *plane) {
			logins := vault.NewLogins(vault.New(p.store, p.keys, quiet))
			for i := range rotatedNames {
				if _, got, _ := logins.Credentials(t.Context(), fmt.Sprintf("r%d.example", i)); got != fmt.Sprint("pass", i) {
					t.Errorf("killed before step %d: password %d is %q", before, i, got)
				}
			}
		})
	}
	// The seal, each name, the keys of identity tokens, and the two hosts.
	if want := 1 + rotatedNames + 1 + 2; interrupted != want {
		t.Errorf("a rotation has %d steps, want %d", interrupted, want)
	}
}
