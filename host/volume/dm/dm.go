// Package dm makes block devices on top of others with the kernel's device mapper, by means of
// dmsetup(8).
//
// A device has no owner process: it stays until Remove, even after its maker has ended, and its name
// identifies it. Its table says what it does. A table may contain the key of a disk, so tables only
// pass through pipes, and never appear in a message or a list of processes.
//
// A command continues when the process that started it is killed; Settle waits for such commands.
//
// Methods may be called from many goroutines. The package does not know what its devices are used
// for.
package dm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/flock"
)

// Program is the program that the package runs, and Package the Debian package that has it.
const (
	Program = "dmsetup"
	Package = "dmsetup"
)

// Path returns the block device of a name.
func Path(name string) string { return filepath.Join("/dev/mapper", name) }

// Mapper sends commands to the device mapper.
type Mapper struct {
	// Lock is a file or directory that is locked while a command runs. Processes that use the same
	// devices must use the same one.
	Lock string
}

// Settle waits until no command runs, including those whose caller was killed.
func (m Mapper) Settle(ctx context.Context) error {
	f, err := os.Open(m.Lock)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := flock.Wait(ctx, f); err != nil {
		return fmt.Errorf("wait for commands of the device mapper: %w", err)
	}
	return nil
}

// Run runs a program that sends commands to the device mapper.
func (m Mapper) Run(cmd *exec.Cmd) error {
	lock, err := m.shared()
	if err != nil {
		return err
	}
	defer lock.Close()
	// The program inherits the lock, so that the lock lasts until both have ended.
	cmd.ExtraFiles = append(cmd.ExtraFiles, lock)
	return cmd.Run()
}

// shared takes the lock in shared mode.
func (m Mapper) shared() (*os.File, error) {
	f, err := os.Open(m.Lock)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", m.Lock, err)
	}
	return f, nil
}

// State is the state of a device.
type State struct {
	Name      string
	Live      bool // it has a table
	Waiting   bool // another table is loaded and waits for Resume
	Suspended bool // writers wait
	Open      bool // it is in use
}

// Targets returns the kinds of targets that this kernel offers, as far as their modules are loaded.
func (m Mapper) Targets(ctx context.Context) ([]string, error) {
	out, err := m.run(ctx, "", "targets")
	if err != nil {
		return nil, err
	}
	var targets []string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(fields[1], "v") {
			targets = append(targets, fields[0])
		}
	}
	return targets, nil
}

// List returns the devices whose names have a prefix.
func (m Mapper) List(ctx context.Context, prefix string) ([]State, error) {
	out, err := m.run(ctx, "", "info", "--columns", "--noheadings", "--separator", " ", "--options", "name,attr,open")
	if err != nil {
		return nil, err
	}
	var states []State
	for line := range strings.Lines(out) {
		// Without any device, dmsetup prints a line of text.
		fields := strings.Fields(line)
		if len(fields) != 3 || len(fields[1]) != 4 || !strings.HasPrefix(fields[0], prefix) {
			continue
		}
		attr := fields[1]
		states = append(states, State{
			Name: fields[0], Live: attr[0] == 'L', Waiting: attr[1] == 'I', Suspended: attr[2] == 's', Open: fields[2] != "0",
		})
	}
	return states, nil
}

// undoPatience bounds the removal of a partly created device.
const undoPatience = time.Minute

// Create makes a device. On an error it leaves nothing behind.
func (m Mapper) Create(ctx context.Context, name string, t Table, readOnly bool) error {
	args := []string{"create", name}
	if readOnly {
		args = append(args, "--readonly")
	}
	if _, err := m.run(ctx, t.line(), args...); err != nil {
		return errors.Join(err, finish.Do(ctx, undoPatience, func(ctx finish.Context) error { return m.Remove(ctx, name) }))
	}
	return nil
}

// Tabled returns the table of a device, with its keys.
func (m Mapper) Tabled(ctx context.Context, name string) (Table, error) {
	out, err := m.run(ctx, "", "table", "--showkeys", name)
	if err != nil {
		return Table{}, err
	}
	return parseTable(out)
}

// Load gives a device another table, which Resume makes current.
func (m Mapper) Load(ctx context.Context, name string, t Table) error {
	_, err := m.run(ctx, t.line(), "load", name)
	return err
}

// Clear drops a waiting table.
func (m Mapper) Clear(ctx finish.Context, name string) error {
	_, err := m.run(ctx, "", "clear", name)
	return err
}

// Remove ends a device that is not in use. A missing device is not an error.
func (m Mapper) Remove(ctx finish.Context, name string) error {
	_, err := m.run(ctx, "", "remove", "--retry", name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Abandon ends a device that is in use: its reads and writes fail from now on, it gets another name,
// and it disappears with its last user.
func (m Mapper) Abandon(ctx finish.Context, name, another string) error {
	for _, args := range [][]string{
		{"wipe_table", "--noflush", "--nolockfs", name},
		{"rename", name, another},
		{"remove", "--deferred", another},
	} {
		if _, err := m.run(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}

// run runs dmsetup with a table as its input.
func (m Mapper) run(ctx context.Context, table string, args ...string) (string, error) {
	// A container may have no udev to make the nodes; with --verifyudev, dmsetup makes them.
	cmd := exec.CommandContext(ctx, Program, append([]string{"--verifyudev"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdin = strings.NewReader(table)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := m.Run(cmd)
	said, _, _ := strings.Cut(strings.TrimSpace(complaint.String()), "\n") // with --retry, dmsetup repeats the message
	switch {
	case err == nil:
		return out.String(), nil
	case strings.Contains(said, "No such device or address"), strings.Contains(said, "does not exist"):
		return "", fmt.Errorf("%s %s: %w", Program, strings.Join(args, " "), fs.ErrNotExist)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s %s: %w", Program, strings.Join(args, " "), context.Cause(ctx))
	default:
		return "", fmt.Errorf("%s %s: %w: %s", Program, strings.Join(args, " "), err, said)
	}
}
