package fake

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hangar-platform/hangar/host/driver"
)

// snapshot is the content of a suspended Machine's snapshot.
type snapshot struct {
	Boot    string        `json:"boot"`
	Command []string      `json:"command"`
	Memory  memory        `json:"memory"`
	Left    *driver.Exit  `json:"left,omitempty"` // the planned exit
	After   time.Duration `json:"after"`          // running time until Left
}

const snapshotFile = "memory"

// sealedSnapshot contains a digest, so that damage is detected.
type sealedSnapshot struct {
	Digest string          `json:"digest"`
	Body   json.RawMessage `json:"body"`
}

// Suspend writes the memory to dir and ends the sandbox.
func (d *Driver) Suspend(ctx context.Context, h driver.Handle, dir string) error {
	v, err := d.decode(h)
	if err != nil {
		return err
	}
	end, err := d.world.begin("suspend", v.ID)
	if err != nil {
		return err
	}
	defer end()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return d.world.misused(v.ID, "suspend to %s, which exists", dir)
	}
	s, err := d.world.findRunning(v)
	if err != nil {
		return err
	}
	if err := d.fault(ctx, OpSuspend, v.ID); err != nil {
		return fmt.Errorf("suspend %s: %w", v.ID, err)
	}
	if err := parseEnv(s.Spec.Command.Env).fault(ctx, EnvSuspendDelay, EnvSuspendError); err != nil {
		return fmt.Errorf("suspend %s: %w", v.ID, err)
	}
	err = d.world.change(v, func(s *sandbox) error {
		if err := writeSnapshot(s, dir); err != nil {
			return err
		}
		s.Ended, s.Exit = &driver.Exit{Suspended: true, At: now()}, nil
		return nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("suspend %s: %w", v.ID, err), os.RemoveAll(dir))
	}
	// From here on the memory is only in dir, so a fault must not undo the suspend: it only delays the
	// answer.
	_ = d.fault(ctx, OpSuspendDone, v.ID)
	return nil
}

func writeSnapshot(s *sandbox, dir string) error {
	snap := snapshot{Boot: s.Boot, Command: s.Spec.Command.Args, Memory: s.Memory}
	if s.Exit != nil {
		snap.Left, snap.After = s.Exit, s.Exit.At.Sub(now())
	}
	body, err := json.Marshal(&snap)
	if err != nil {
		return err
	}
	sealed, err := json.Marshal(&sealedSnapshot{Digest: digest(body), Body: body})
	if err != nil {
		return err
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, snapshotFile), sealed, 0o600); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.Rename(fresh, dir); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Resume continues from the snapshot in dir.
func (d *Driver) Resume(ctx context.Context, spec driver.Spec, dir string) (driver.Handle, error) {
	end, err := d.world.begin("resume", spec.ID)
	if err != nil {
		return nil, err
	}
	defer end()
	env, err := d.checkSpec(spec, "resume")
	if err != nil {
		return nil, err
	}
	if err := d.fault(ctx, OpResume, spec.ID); err != nil {
		return nil, fmt.Errorf("resume %s: %w", spec.ID, err)
	}
	if err := env.fault(ctx, EnvResumeDelay, EnvResumeError); err != nil {
		return nil, fmt.Errorf("resume %s: %w", spec.ID, err)
	}
	snap, err := readSnapshot(dir)
	if err != nil {
		return nil, fmt.Errorf("resume %s: %w: %w", spec.ID, driver.ErrSnapshotUnusable, err)
	}
	if !slices.Equal(snap.Command, spec.Command.Args) {
		return nil, fmt.Errorf("resume %s: %w: it was made of %q", spec.ID, driver.ErrSnapshotUnusable, snap.Command)
	}
	s := &sandbox{Spec: spec, Boot: snap.Boot, Incarnation: rand.Text(), Started: now(), Memory: snap.Memory, Exit: snap.Left}
	if s.Exit != nil {
		s.Exit.At = s.Started.Add(snap.After)
	}
	writes, err := s.rootWrites()
	if err != nil {
		return nil, fmt.Errorf("resume %s: %w", spec.ID, err)
	}
	if writes != snap.Memory.Writes {
		return nil, d.world.misused(spec.ID, "resume with a root of %d writes of memory that made %d", writes, snap.Memory.Writes)
	}
	return d.launch(ctx, s, OpResumeDone)
}

func readSnapshot(dir string) (*snapshot, error) {
	b, err := os.ReadFile(filepath.Join(dir, snapshotFile))
	if err != nil {
		return nil, err
	}
	var sealed sealedSnapshot
	if err := json.Unmarshal(b, &sealed); err != nil {
		return nil, err
	}
	if digest(sealed.Body) != sealed.Digest {
		return nil, errors.New("digest does not match")
	}
	snap := new(snapshot)
	if err := json.Unmarshal(sealed.Body, snap); err != nil {
		return nil, err
	}
	return snap, nil
}
