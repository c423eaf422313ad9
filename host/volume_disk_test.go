package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/finish"
)

// disk is a pretend disk with the images of volumes, which outlives agents.
type disk struct {
	dir string

	mu      sync.Mutex
	free    int64
	online  bool // file systems grow while they are mounted
	images  map[hangar.VolumeID]*pretendImage
	fault   func(op string, id hangar.VolumeID) error
	misuses []string

	stuck atomic.Bool // nothing tells how full it is
}

// pretendImage is an image and what is open of it.
type pretendImage struct {
	spec      devices.Spec
	formatted bool
	fsSize    int64 // of the file system
	used      int64 // bytes of it
	open      bool
	mounted   bool
	dirty     bool // it was mounted and not unmounted
	broken    error
	loss      chan struct{} // closed when the device goes away by itself
	content   pretendContent
}

func newDisk(dir string) *disk {
	return &disk{dir: dir, free: 100 << 30, images: make(map[hangar.VolumeID]*pretendImage)}
}

// session is the disk as one agent sees it: nothing happens any more once it is dead.
type session struct {
	*disk
	dead atomic.Bool
	mine sync.Map // ids that this agent has attached and not closed
}

var errDead = errors.New("the daemon is dead")

// enter begins an operation; leave must be called if there is no error.
func (s *session) enter(op string, id hangar.VolumeID) error {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if err := fault(op, id); err != nil {
			return err
		}
	}
	if s.dead.Load() {
		return errDead
	}
	s.mu.Lock()
	return nil
}

func (s *session) leave() { s.mu.Unlock() }

func (s *session) misuse(format string, args ...any) {
	s.misuses = append(s.misuses, fmt.Sprintf(format, args...))
}

func (s *session) Create(_ context.Context, spec devices.Spec) error {
	if err := s.enter("create", spec.ID); err != nil {
		return err
	}
	defer s.leave()
	if s.images[spec.ID] != nil {
		return fs.ErrExist
	}
	s.images[spec.ID] = &pretendImage{spec: spec}
	return nil
}

func (s *session) Verify(_ context.Context, spec devices.Spec) error {
	if err := s.enter("verify", spec.ID); err != nil {
		return err
	}
	defer s.leave()
	return s.verify(spec)
}

func (s *session) verify(spec devices.Spec) error {
	im := s.images[spec.ID]
	switch {
	case im == nil:
		return fs.ErrNotExist
	case im.broken != nil && !errors.Is(im.broken, devices.ErrUnrepairable):
		return im.broken
	case !bytes.Equal(im.spec.Key, spec.Key):
		return devices.ErrWrongKey
	case im.spec.Size < spec.Size:
		return devices.ErrTruncated
	default:
		return nil
	}
}

func (s *session) Attach(_ context.Context, spec devices.Spec) (volumes.Device, error) {
	if err := s.enter("attach", spec.ID); err != nil {
		return nil, err
	}
	defer s.leave()
	if err := s.verify(spec); err != nil {
		return nil, err
	}
	if _, twice := s.mine.LoadOrStore(spec.ID, true); twice {
		s.misuse("attach %s twice", spec.ID)
	}
	im := s.images[spec.ID]
	im.content.viewed = false
	if !im.open {
		im.open, im.loss = true, make(chan struct{})
	}
	return &pretendDevice{s: s, im: im, loss: im.loss}, nil
}

func (s *session) Release(_ finish.Context, id hangar.VolumeID) error {
	if err := s.enter("release", id); err != nil {
		return err
	}
	defer s.leave()
	s.mine.Delete(id)
	if im := s.images[id]; im != nil {
		im.open, im.mounted, im.content.viewed = false, false, false
	}
	return nil
}

func (s *session) List(context.Context) (ids []hangar.VolumeID, err error) {
	if err := s.enter("list", ""); err != nil {
		return nil, err
	}
	defer s.leave()
	for id, im := range s.images {
		if im.open {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (s *session) Remove(_ finish.Context, id hangar.VolumeID) error {
	if err := s.enter("remove", id); err != nil {
		return err
	}
	defer s.leave()
	if im := s.images[id]; im != nil && im.open {
		s.misuse("remove %s, which is open", id)
	}
	delete(s.images, id)
	return nil
}

func (s *session) Room(context.Context) (volumes.DiskRoom, error) {
	if err := s.enter("room", ""); err != nil {
		return volumes.DiskRoom{}, err
	}
	defer s.leave()
	room := volumes.DiskRoom{Free: s.free, Taken: make(map[hangar.VolumeID]int64)}
	for id, im := range s.images {
		room.Taken[id] = im.used
		room.Free -= im.used
	}
	return room, nil
}

// set changes an image, as the world does.
func (d *disk) set(id hangar.VolumeID, change func(*pretendImage)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.images[id])
}

// get looks at an image; ok is false if there is none.
func (d *disk) get(id hangar.VolumeID) (im pretendImage, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.images[id]; at != nil {
		return *at, true
	}
	return im, false
}

func (d *disk) inject(fault func(op string, id hangar.VolumeID) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// lose ends the device of a volume, as when its storage daemon is killed.
func (d *disk) lose(id hangar.VolumeID) {
	d.set(id, func(im *pretendImage) {
		im.dirty = im.dirty || im.mounted
		im.open, im.mounted = false, false
		close(im.loss)
	})
}

type pretendDevice struct {
	s    *session
	im   *pretendImage
	loss chan struct{}
}

// enter begins an operation on an open device.
func (d *pretendDevice) enter(op string) error {
	if err := d.s.enter(op, d.im.spec.ID); err != nil {
		return err
	}
	if d.lost() {
		d.s.leave()
		return devices.ErrLost
	}
	return nil
}

func (d *pretendDevice) lost() bool {
	select {
	case <-d.loss:
		return true
	default:
		return false
	}
}

func (d *pretendDevice) Path() string          { return "/dev/pretend" }
func (d *pretendDevice) Lost() <-chan struct{} { return d.loss }
func (d *pretendDevice) Err() error            { return devices.ErrLost }

func (d *pretendDevice) Format(context.Context) error {
	if err := d.enter("format"); err != nil {
		return err
	}
	defer d.s.leave()
	if d.im.formatted {
		return devices.ErrNotBlank
	}
	d.im.formatted, d.im.fsSize = true, d.im.spec.Size
	return nil
}

func (d *pretendDevice) Mount(context.Context) (volumes.MountedVolume, error) {
	if err := d.enter("mount"); err != nil {
		return volumes.MountedVolume{}, err
	}
	defer d.s.leave()
	switch {
	case errors.Is(d.im.broken, devices.ErrUnrepairable):
		return volumes.MountedVolume{}, d.im.broken
	case !d.im.formatted:
		d.s.misuse("mount %s, which is blank", d.im.spec.ID)
	}
	m := volumes.MountedVolume{
		Dir: filepath.Join(d.s.dir, string(d.im.spec.ID)), Replayed: d.im.dirty && !d.im.mounted, Grown: d.im.fsSize < d.im.spec.Size,
	}
	if m.Replayed {
		m.Report = "recovering journal"
	}
	d.im.mounted, d.im.dirty, d.im.fsSize = true, false, d.im.spec.Size
	return m, os.MkdirAll(m.Dir, 0o700)
}

func (d *pretendDevice) Usage(ctx context.Context) (hangar.VolumeUsage, error) {
	if d.s.stuck.Load() {
		<-ctx.Done()
		return hangar.VolumeUsage{}, ctx.Err()
	}
	if err := d.enter("usage"); err != nil {
		return hangar.VolumeUsage{}, err
	}
	defer d.s.leave()
	if !d.im.mounted {
		return hangar.VolumeUsage{}, nil
	}
	blocks, free := d.im.fsSize/4096, (d.im.fsSize-d.im.used)/4096
	return hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: blocks, BlockSize: 4096, BlocksFree: free, BlocksAvail: free}, nil
}

func (d *pretendDevice) Extend(_ finish.Context, size int64) (online bool, err error) {
	if err := d.enter("extend"); err != nil {
		return false, err
	}
	defer d.s.leave()
	if size < d.im.spec.Size {
		d.s.misuse("extend %s to less than it has", d.im.spec.ID)
	}
	d.im.spec.Size = size
	if d.s.online && d.im.mounted {
		d.im.fsSize = size
	}
	return d.s.online && d.im.mounted, nil
}

func (d *pretendDevice) Close(finish.Context) error {
	if err := d.s.enter("close", d.im.spec.ID); err != nil {
		return err
	}
	defer d.s.leave()
	d.s.mine.Delete(d.im.spec.ID)
	if d.lost() {
		return devices.ErrLost
	}
	d.im.open, d.im.mounted, d.im.content.viewed = false, false, false
	return nil
}
