package volume

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/dm"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

// kernelBackend makes a volume of these devices, each on top of the next:
//
//	NAME          the content: dm-crypt with the master key, or linear without encryption
//	/dev/loopN    the image
//
// With a view, the volume consists of these:
//
//	NAME          over NAME.origin
//	NAME.origin   copies blocks to NAME.past before they are overwritten
//	NAME.view     read-only, with the former table of NAME, over NAME.past
//	NAME.past     the image at that moment
//	/dev/loopN    the image, under NAME.origin and NAME.past; another one has the file for copies
//
// The copies are made below dm-crypt, so that no plaintext is written. NAME.origin only exists with a
// view, because it does not support discards.
//
// A loop device ends with the last device on top of it.
type kernelBackend struct {
	v      *Volumes
	mapper dm.Mapper
}

// Suffixes of device names. The loop device of the image has no suffix.
const (
	originSuffix = ".origin"
	pastSuffix   = ".past"
	viewSuffix   = ".view"
	copiesSuffix = ".copies" // of a loop device
	goneSuffix   = "-gone-"  // of an abandoned device, which ends with its last user and writes to no disk until then
)

func newKernelBackend(v *Volumes) *kernelBackend {
	return &kernelBackend{v: v, mapper: dm.Mapper{Lock: v.o.Run}}
}

// names is the prefix of all device names of the instance.
func (k *kernelBackend) names() string { return "hangar-" + k.v.o.Instance + "-" }

// name is the name of a volume's block device.
func (k *kernelBackend) name(id hangar.VolumeID) string { return k.names() + string(id) }

// copies is the file for blocks that are overwritten during a view.
func (k *kernelBackend) copies(id hangar.VolumeID) string {
	return filepath.Join(k.v.dir(id), cowFile)
}

// kernelTargets are the device mapper targets that the backend needs, with their kernel modules.
var kernelTargets = []struct{ target, module string }{
	{dm.TargetLinear, "dm-mod"},
	{dm.TargetCrypt, "dm-crypt"},
	{dm.TargetSnapshot, "dm-snapshot"},
	{dm.TargetOrigin, "dm-snapshot"},
}

func (k *kernelBackend) check(ctx context.Context) error {
	if err := require(map[string]string{dm.Program: dm.Package}); err != nil {
		return err
	}
	// The node may have been made by hand, without a driver behind it.
	f, err := os.OpenFile(dm.Control, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the kernel has no device mapper: %w", err)
	}
	_ = f.Close()
	has, err := k.mapper.Targets(ctx)
	if err != nil {
		return err
	}
	for _, need := range kernelTargets {
		if slices.Contains(has, need.target) {
			continue
		}
		// The kernel loads targets on first use; modprobe tests whether that works.
		_ = exec.CommandContext(ctx, "modprobe", need.module).Run()
		if has, err = k.mapper.Targets(ctx); err != nil {
			return err
		}
		if !slices.Contains(has, need.target) {
			return fmt.Errorf("the kernel's device mapper has no target %s: load the module %s", need.target, need.module)
		}
	}
	// Commands of a killed process may still be running.
	return k.mapper.Settle(ctx)
}

func (k *kernelBackend) open(ctx context.Context, im image, key []byte) (handle, error) {
	// This backend does not count changes.
	if err := errors.Join(durable.Remove(filepath.Join(k.v.dir(im.id), changesFile)), durable.SyncDir(k.v.dir(im.id))); err != nil {
		return nil, err
	}
	name := k.name(im.id)
	loop, err := attach(im.path, name)
	if err != nil {
		return nil, err
	}
	if im.encrypted() {
		err = k.unlock(ctx, loop, name, key)
	} else {
		err = k.mapper.Create(ctx, name, dm.Linear(im.size, loop), false)
	}
	// From now on, the loop device ends with the last device on top of it.
	if err := errors.Join(err, loopdev.Detach(loop)); err != nil {
		return nil, err
	}
	return k.handle(im, loop), nil
}

// attach makes a loop device of a file.
func attach(name, label string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return loopdev.Attach(f, loopdev.Config{Label: label, BlockSize: blockSize, Direct: true})
}

// inDir reports whether a loop device's file is an image of this instance, even a removed one.
func (k *kernelBackend) inDir(file string) bool { return strings.HasPrefix(file, k.v.o.Dir+"/") }

// labelled returns the loop devices with a label.
func (k *kernelBackend) labelled(label string) ([]loopdev.Device, error) {
	all, err := loopdev.List(k.inDir)
	return slices.DeleteFunc(all, func(d loopdev.Device) bool { return d.Label != label }), err
}

// detach ends the loop devices with a label.
func (k *kernelBackend) detach(ctx finish.Context, label string) error {
	found, err := k.labelled(label)
	if err != nil {
		return err
	}
	for _, l := range found {
		if err := errors.Join(loopdev.Detach(l.Path), loopdev.Await(ctx, l)); err != nil {
			return err
		}
	}
	return nil
}

// unlock makes the decrypted device of an encrypted one.
func (k *kernelBackend) unlock(ctx context.Context, device, name string, key []byte) error {
	cmd := exec.CommandContext(ctx, luks.Program, "open", "--type", "luks1", "--key-file", "-", "--allow-discards", device, name)
	cmd.Stdin = bytes.NewReader(luks.Passphrase(key))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := k.mapper.Run(cmd); err != nil {
		return fmt.Errorf("%s open %s: %w: %s", luks.Program, device, err, strings.TrimSpace(said.String()))
	}
	return nil
}

func (k *kernelBackend) handle(im image, loop string) *kernelHandle {
	return &kernelHandle{kernel: k, image: im, name: k.name(im.id), loop: loop, gone: make(chan struct{})}
}

// states returns the devices of a volume by name suffix.
func (k *kernelBackend) states(ctx context.Context, id hangar.VolumeID) (map[string]dm.State, error) {
	list, err := k.mapper.List(ctx, k.name(id))
	if err != nil {
		return nil, err
	}
	states := map[string]dm.State{}
	for _, s := range list {
		suffix := strings.TrimPrefix(s.Name, k.name(id))
		if suffix == "" || suffix[0] == '.' {
			states[suffix] = s
		}
	}
	return states, nil
}

func (k *kernelBackend) adopt(ctx finish.Context, im image, _ []byte) (handle, error) {
	states, err := k.states(ctx, im.id)
	if err != nil {
		return nil, err
	}
	top, ok := states[""]
	if !ok || !top.Live {
		return nil, errNotOpen
	}
	found, err := k.labelled(k.name(im.id))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("there are %d loop devices", len(found))
	}
	h := k.handle(im, found[0].Path)
	if top.Suspended {
		if err := k.mapper.Resume(h.name); err != nil {
			return nil, err
		}
	} else if top.Waiting {
		if err := k.mapper.Clear(ctx, h.name); err != nil {
			return nil, err
		}
	}
	// The device must be on top of the loop device only, with the size of the image. A killed process
	// may have grown the image but not the loop device.
	if err := loopdev.Refresh(h.loop); err != nil {
		return nil, err
	}
	if err := h.replace(ctx, h.loop, im.size); err != nil {
		return nil, err
	}
	return h, h.endView(ctx)
}

func (k *kernelBackend) release(ctx finish.Context, id hangar.VolumeID) error {
	states, err := k.states(ctx, id)
	if err != nil {
		return err
	}
	name := k.name(id)
	for _, suffix := range []string{viewSuffix, "", originSuffix, pastSuffix} {
		s, ok := states[suffix]
		if !ok {
			continue
		}
		if s.Suspended && s.Live {
			if err := k.mapper.Resume(s.Name); err != nil {
				return err
			}
		}
		if err := k.mapper.Remove(ctx, s.Name); err != nil && ctx.Err() == nil {
			// An unknown process still has it mounted.
			k.v.o.Log.WarnContext(ctx, "block device lingers", "volume", id, "error", err)
			err = k.mapper.Abandon(ctx, s.Name, s.Name+goneSuffix+rand.Text())
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	for _, label := range []string{name, name + copiesSuffix} {
		if err := k.detach(ctx, label); err != nil {
			return err
		}
	}
	return durable.Remove(k.copies(id))
}

func (k *kernelBackend) list(ctx context.Context) ([]hangar.VolumeID, error) {
	states, err := k.mapper.List(ctx, k.names())
	if err != nil {
		return nil, err
	}
	all, err := loopdev.List(k.inDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range states {
		names = append(names, s.Name)
	}
	for _, l := range all {
		names = append(names, l.Label)
	}
	var ids []hangar.VolumeID
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, k.names())
		if !ok {
			continue
		}
		id, _, _ := strings.Cut(rest, ".") // abandoned devices have no valid id
		// Another instance's name may start with this one's.
		if id := hangar.VolumeID(id); id.Valid() && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// kernelHandle is an open volume.
type kernelHandle struct {
	kernel *kernelBackend
	name   string
	loop   string        // block device of the image
	gone   chan struct{} // never closed: a device does not fail by itself

	mu    sync.Mutex // serializes changes of the devices
	image image
	view  *kernelView // nil: no view
}

func (h *kernelHandle) path() string { return dm.Path(h.name) }

// replace puts the volume's device on top of another one, with a given size, unless it is so already.
// Writers wait for a moment.
func (h *kernelHandle) replace(ctx finish.Context, under string, size int64) error {
	table, err := h.kernel.mapper.Tabled(ctx, h.name)
	if err != nil {
		return err
	}
	number, err := deviceNumber(under)
	if err != nil {
		return err
	}
	if table.Under() == number && table.Size() == size {
		return nil
	}
	return h.swap(ctx, h.name, table.Over(under).Sized(size))
}

// swap replaces the table of a device.
func (h *kernelHandle) swap(ctx finish.Context, name string, table dm.Table) error {
	if err := h.kernel.mapper.Load(ctx, name, table); err != nil {
		return err
	}
	if err := h.kernel.mapper.Resume(name); err != nil {
		return errors.Join(err, finish.Do(ctx, finishPatience, func(ctx finish.Context) error { return h.kernel.mapper.Clear(ctx, name) }))
	}
	return nil
}

func (h *kernelHandle) grow(ctx finish.Context, size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	states, err := h.kernel.states(ctx, h.image.id)
	if err != nil {
		return err
	}
	whole := h.image.payload + size
	if err := extendFile(h.image.path, whole); err != nil {
		return err
	}
	if err := loopdev.Refresh(h.loop); err != nil {
		return err
	}
	under := h.loop
	if _, ok := states[originSuffix]; ok {
		under = dm.Path(h.name + originSuffix)
		if err := h.swap(ctx, h.name+originSuffix, dm.Origin(whole, h.loop)); err != nil {
			return err
		}
	}
	if err := h.replace(ctx, under, size); err != nil {
		return err
	}
	h.image.size = size
	return nil
}

// extendFile enlarges a file, durably.
func extendFile(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() >= size {
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// direct is false, because the kernel encrypts as fast as this process could.
func (h *kernelHandle) direct(context.Context) (bool, error) { return false, nil }

func (h *kernelHandle) lost() <-chan struct{} { return h.gone }

func (h *kernelHandle) err() error { return nil }

func (h *kernelHandle) leave() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.view == nil {
		return nil
	}
	return h.view.content.Close()
}

func (h *kernelHandle) close(ctx finish.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.view != nil {
		_ = h.view.content.Close()
		h.view = nil
	}
	if err := flush(h.path()); err != nil {
		return fmt.Errorf("flush %s: %w", h.path(), err)
	}
	return h.kernel.release(ctx, h.image.id)
}

// deviceNumber returns the number of a block device, as tables contain it.
func deviceNumber(device string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}
