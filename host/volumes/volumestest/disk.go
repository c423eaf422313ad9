package volumestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Disk is a pretend disk with the images of volumes, which outlives agents.
type Disk struct {
	Dir string // where file systems are mounted

	mu      sync.Mutex
	free    int64
	online  bool // file systems grow while they are mounted
	images  map[hangar.VolumeID]*Image
	fault   func(op string, id hangar.VolumeID) error
	misuses []string

	stuck atomic.Bool // its usage cannot be read
}

// Image is an image and what is open of it.
type Image struct {
	Spec      devices.Spec
	Formatted bool
	FSSize    int64 // of the file system
	Used      int64 // bytes of it
	Open      bool
	Mounted   bool
	Dirty     bool // it was mounted and not unmounted
	Broken    error
	Loss      chan struct{} // closed when the device goes away by itself
	Content   Content
}

// NewDisk returns an empty disk, whose file systems are mounted in dir.
func NewDisk(dir string) *Disk {
	return &Disk{Dir: dir, free: 100 << 30, images: make(map[hangar.VolumeID]*Image)}
}

// SetFree sets how many bytes of the disk no image has.
func (d *Disk) SetFree(free int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = free
}

// SetOnline says whether file systems grow while they are mounted.
func (d *Disk) SetOnline(online bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.online = online
}

// SetStuck makes the usage unreadable, or readable again.
func (d *Disk) SetStuck(stuck bool) { d.stuck.Store(stuck) }

// Count is how many images there are.
func (d *Disk) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.images)
}

// Unused reports whether there are so many images, and nothing is open of any.
func (d *Disk) Unused(images int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, im := range d.images {
		if im.Open || im.Content.Viewed {
			return false
		}
	}
	return images == len(d.images)
}

// Misuses are calls that no Store may make.
func (d *Disk) Misuses() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.misuses)
}

// Session returns the disk as a new daemon sees it.
func (d *Disk) Session() *Session { return &Session{Disk: d} }

// Session is the disk as one agent sees it: nothing happens any more once it is dead.
type Session struct {
	*Disk

	dead atomic.Bool
	mine sync.Map // ids that this agent has attached and not closed
}

// ErrDead is the error of what a dead daemon does.
var ErrDead = errors.New("the daemon is dead")

// Kill ends the daemon: it does nothing to the disk any more.
func (s *Session) Kill() { s.dead.Store(true) }

// Dead reports whether the daemon was killed.
func (s *Session) Dead() bool { return s.dead.Load() }

// enter begins an operation; leave must be called if there is no error.
func (s *Session) enter(op string, id hangar.VolumeID) error {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if err := fault(op, id); err != nil {
			return err
		}
	}
	if s.dead.Load() {
		return ErrDead
	}
	s.mu.Lock()
	return nil
}

func (s *Session) leave() { s.mu.Unlock() }

func (s *Session) misuse(format string, args ...any) {
	s.misuses = append(s.misuses, fmt.Sprintf(format, args...))
}

// Create implements volumes.Devices.
func (s *Session) Create(_ context.Context, spec devices.Spec) error {
	if err := s.enter("create", spec.ID); err != nil {
		return err
	}
	defer s.leave()
	if s.images[spec.ID] != nil {
		return fs.ErrExist
	}
	s.images[spec.ID] = &Image{Spec: spec}
	return nil
}

// Verify implements volumes.Devices.
func (s *Session) Verify(_ context.Context, spec devices.Spec) error {
	if err := s.enter("verify", spec.ID); err != nil {
		return err
	}
	defer s.leave()
	return s.verify(spec)
}

func (s *Session) verify(spec devices.Spec) error {
	im := s.images[spec.ID]
	switch {
	case im == nil:
		return fs.ErrNotExist
	case im.Broken != nil && !errors.Is(im.Broken, devices.ErrUnrepairable):
		return im.Broken
	case !bytes.Equal(im.Spec.Key, spec.Key):
		return devices.ErrWrongKey
	case im.Spec.Size < spec.Size:
		return devices.ErrTruncated
	default:
		return nil
	}
}

// Attach implements volumes.Devices.
func (s *Session) Attach(_ context.Context, spec devices.Spec) (volumes.Device, error) {
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
	im.Content.Viewed = false
	if !im.Open {
		im.Open, im.Loss = true, make(chan struct{})
	}
	return &device{s: s, im: im, loss: im.Loss}, nil
}

// Release implements volumes.Devices.
func (s *Session) Release(_ finish.Context, id hangar.VolumeID) error {
	if err := s.enter("release", id); err != nil {
		return err
	}
	defer s.leave()
	s.mine.Delete(id)
	if im := s.images[id]; im != nil {
		im.Open, im.Mounted, im.Content.Viewed = false, false, false
	}
	return nil
}

// List implements volumes.Devices.
func (s *Session) List(context.Context) (ids []hangar.VolumeID, err error) {
	if err := s.enter("list", ""); err != nil {
		return nil, err
	}
	defer s.leave()
	for id, im := range s.images {
		if im.Open {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Remove implements volumes.Devices.
func (s *Session) Remove(_ finish.Context, id hangar.VolumeID) error {
	if err := s.enter("remove", id); err != nil {
		return err
	}
	defer s.leave()
	if im := s.images[id]; im != nil && im.Open {
		s.misuse("remove %s, which is open", id)
	}
	delete(s.images, id)
	return nil
}

// Room implements volumes.Devices.
func (s *Session) Room(context.Context) (volumes.DiskRoom, error) {
	if err := s.enter("room", ""); err != nil {
		return volumes.DiskRoom{}, err
	}
	defer s.leave()
	room := volumes.DiskRoom{Free: s.free, Taken: make(map[hangar.VolumeID]int64)}
	for id, im := range s.images {
		room.Taken[id] = im.Used
		room.Free -= im.Used
	}
	return room, nil
}

// Set changes an image, as the world does.
func (d *Disk) Set(id hangar.VolumeID, change func(*Image)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.images[id])
}

// Get looks at an image; ok is false if there is none.
func (d *Disk) Get(id hangar.VolumeID) (im Image, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.images[id]; at != nil {
		return *at, true
	}
	return im, false
}

// Inject has fault called with what is about to happen to a volume, which it may hold up, or fail;
// nil: nothing.
func (d *Disk) Inject(fault func(op string, id hangar.VolumeID) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// Lose ends the device of a volume, as when its storage daemon is killed.
func (d *Disk) Lose(id hangar.VolumeID) {
	d.Set(id, func(im *Image) {
		im.Dirty = im.Dirty || im.Mounted
		im.Open, im.Mounted = false, false
		close(im.Loss)
	})
}

type device struct {
	s    *Session
	im   *Image
	loss chan struct{}
}

// enter begins an operation on an open device.
func (d *device) enter(op string) error {
	if err := d.s.enter(op, d.im.Spec.ID); err != nil {
		return err
	}
	if d.lost() {
		d.s.leave()
		return devices.ErrLost
	}
	return nil
}

func (d *device) lost() bool {
	select {
	case <-d.loss:
		return true
	default:
		return false
	}
}

func (d *device) Path() string          { return "/dev/pretend" }
func (d *device) Lost() <-chan struct{} { return d.loss }
func (d *device) Err() error            { return devices.ErrLost }

func (d *device) Format(context.Context) error {
	if err := d.enter("format"); err != nil {
		return err
	}
	defer d.s.leave()
	if d.im.Formatted {
		return devices.ErrNotBlank
	}
	d.im.Formatted, d.im.FSSize = true, d.im.Spec.Size
	return nil
}

func (d *device) Mount(context.Context) (volumes.MountedVolume, error) { return d.mount(true) }

func (d *device) MountClean(context.Context) (volumes.MountedVolume, error) { return d.mount(false) }

func (d *device) mount(repair bool) (volumes.MountedVolume, error) {
	if err := d.enter("mount"); err != nil {
		return volumes.MountedVolume{}, err
	}
	defer d.s.leave()
	unrepairable := errors.Is(d.im.Broken, devices.ErrUnrepairable)
	switch {
	case !repair && !d.im.Mounted && (unrepairable || d.im.Dirty):
		return volumes.MountedVolume{}, devices.ErrUnclean
	case unrepairable:
		return volumes.MountedVolume{}, d.im.Broken
	case !d.im.Formatted:
		d.s.misuse("mount %s, which is blank", d.im.Spec.ID)
	}
	m := volumes.MountedVolume{
		Dir: filepath.Join(d.s.Dir, string(d.im.Spec.ID)), Replayed: d.im.Dirty && !d.im.Mounted, Grown: d.im.FSSize < d.im.Spec.Size,
	}
	if m.Replayed {
		m.Report = "recovering journal"
	}
	d.im.Mounted, d.im.Dirty, d.im.FSSize = true, false, d.im.Spec.Size
	return m, os.MkdirAll(m.Dir, 0o700)
}

func (d *device) Usage(ctx context.Context) (hangar.VolumeUsage, error) {
	if d.s.stuck.Load() {
		<-ctx.Done()
		return hangar.VolumeUsage{}, ctx.Err()
	}
	if err := d.enter("usage"); err != nil {
		return hangar.VolumeUsage{}, err
	}
	defer d.s.leave()
	if !d.im.Mounted {
		return hangar.VolumeUsage{}, nil
	}
	blocks, free := d.im.FSSize/4096, (d.im.FSSize-d.im.Used)/4096
	return hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: blocks, BlockSize: 4096, BlocksFree: free, BlocksAvail: free}, nil
}

func (d *device) Extend(_ finish.Context, size int64) (online bool, err error) {
	if err := d.enter("extend"); err != nil {
		return false, err
	}
	defer d.s.leave()
	if size < d.im.Spec.Size {
		d.s.misuse("extend %s to less than it has", d.im.Spec.ID)
	}
	d.im.Spec.Size = size
	if d.s.online && d.im.Mounted {
		d.im.FSSize = size
	}
	return d.s.online && d.im.Mounted, nil
}

func (d *device) Close(finish.Context) error {
	if err := d.s.enter("close", d.im.Spec.ID); err != nil {
		return err
	}
	defer d.s.leave()
	d.s.mine.Delete(d.im.Spec.ID)
	d.im.Open, d.im.Mounted, d.im.Content.Viewed = false, false, false
	if d.lost() {
		return devices.ErrLost
	}
	return nil
}
