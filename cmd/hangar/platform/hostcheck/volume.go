package hostcheck

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Fixes that several checks suggest.
const (
	mapperFix = "as root, modprobe -a dm-crypt dm-snapshot; in a cloud kernel install linux-modules-extra"
	daemonFix = "apt-get install qemu-system-common (on other systems the package may be called qemu-storage-daemon)"
)

// checkVolumes reports how this host can open volumes.
func checkVolumes(string) Check { return verdictVolumes(mapperReady(), daemonReady()) }

// verdictVolumes takes the reasons why the kernel and the storage daemon cannot open volumes, nil for one that can.
func verdictVolumes(mapper, daemon error) Check {
	switch {
	case mapper == nil:
		return ok("opened by the kernel's device mapper, at nearly the speed of the disk")
	case daemon == nil:
		return warn("nothing is needed unless that is too slow; then see device mapper. Existing volumes switch automatically",
			"opened by one qemu-storage-daemon each, because %v: at about 200 MB/s, with a process of 12 MB per volume in use", mapper)
	}
	return warn("fix the device mapper, see there; or "+daemonFix+" and modprobe fuse",
		"volumes cannot be opened: %v, and %v", mapper, daemon)
}

// mapperReady returns why the device mapper cannot open volumes, or nil.
func mapperReady() error {
	if err := tryMapper(); err != nil {
		return err
	}
	return lacksPrograms("dmsetup")
}

// daemonReady returns why the storage daemon cannot open volumes, or nil.
func daemonReady() error {
	if err := lacksPrograms("qemu-storage-daemon"); err != nil {
		return err
	}
	return tryFuse()
}

func lacksPrograms(names ...string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, err := exec.LookPath(name)
		return err == nil
	})
	if len(missing) > 0 {
		return fmt.Errorf("%s cannot be found", strings.Join(missing, ", "))
	}
	return nil
}

// volumeTools are the programs that all volumes need, by Debian package.
var volumeTools = []struct {
	pkg      string
	programs []string
	use      string
}{
	{"e2fsprogs", []string{"mke2fs", "e2fsck", "resize2fs", "e2undo"}, "they create, check and enlarge file systems"},
	{"cryptsetup-bin", []string{"cryptsetup"}, "it creates encrypted volumes"},
}

func checkVolumeTools(string) Check {
	var fixes, details, found []string
	for _, tool := range volumeTools {
		if err := lacksPrograms(tool.programs...); err != nil {
			fixes, details = append(fixes, tool.pkg), append(details, fmt.Sprintf("%v; %s", err, tool.use))
		}
		found = append(found, tool.programs...)
	}
	if len(fixes) > 0 {
		return warn("apt-get install "+strings.Join(fixes, " "), "%s", strings.Join(details, "; "))
	}
	return ok("%s are installed", strings.Join(found, ", "))
}

// checkLoop looks for a free loop device, and leaves it free.
func checkLoop(string) Check {
	const fix = "as root, modprobe loop; in a container, give it /dev/loop-control and the loop devices"
	fd, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return warn(fix, "/dev/loop-control: %v; every volume in use needs a loop device", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE); err != nil {
		return warn(fix, "there is no free loop device: %v; every volume in use needs one", err)
	}
	return ok("usable; every volume in use needs one")
}

func checkMapper(string) Check {
	if err := tryMapper(); err != nil {
		return warn(mapperFix, "%v; without it volumes are slower", err)
	}
	if err := lacksPrograms("dmsetup"); err != nil {
		return warn("apt-get install dmsetup", "%v; it opens volumes in the kernel", err)
	}
	return ok("usable with the targets %s, for volumes", strings.Join(mapperTargets, ", "))
}

// mapperTargets are the targets that volumes use.
var mapperTargets = []string{"linear", "crypt", "snapshot", "snapshot-origin"}

// tryMapper asks the device mapper for the versions of its targets, which loads their modules.
func tryMapper() error {
	const (
		getTargetVersion = 0xc138fd11 // _IOWR(DM_IOCTL, 17, struct dm_ioctl)
		headerSize       = 312        // of struct dm_ioctl
		nameOffset       = 48
	)
	fd, err := unix.Open("/dev/mapper/control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the kernel has no device mapper (/dev/mapper/control: %w)", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, target := range mapperTargets {
		b := make([]byte, 16<<10)
		binary.NativeEndian.PutUint32(b, 4)                       // version of the interface
		binary.NativeEndian.PutUint32(b[12:], uint32(len(b)))     // data_size
		binary.NativeEndian.PutUint32(b[16:], uint32(headerSize)) // data_start
		copy(b[nameOffset:], target)
		if err := ioctl(fd, getTargetVersion, b); err != nil {
			return fmt.Errorf("the kernel's device mapper has no target %s (%w)", target, err)
		}
	}
	return nil
}

func checkFuse(string) Check {
	if err := tryFuse(); err != nil {
		return warn("as root, modprobe fuse; in a container, give it /dev/fuse", "%v; volumes need it if there is no device mapper", err)
	}
	return ok("usable, for volumes if there is no device mapper")
}

func tryFuse() error {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	return unix.Close(fd)
}

func checkStorageDaemon(string) Check {
	path, err := exec.LookPath("qemu-storage-daemon")
	if err != nil {
		return warn(daemonFix, "qemu-storage-daemon is not installed; volumes need it if there is no device mapper")
	}
	return ok("%s, for volumes if there is no device mapper", path)
}

// checkGrowth looks for the capability that is needed to enlarge a mounted file system, even by root.
func checkGrowth(string) Check {
	missing, err := lacks(map[int]string{unix.CAP_SYS_RESOURCE: "CAP_SYS_RESOURCE"})
	if err != nil {
		return warn("mount /proc", "capabilities are unknown: %v", err)
	}
	if os.Geteuid() == 0 && len(missing) > 0 {
		return warn("in a container, add the capability; in a systemd unit, add it to CapabilityBoundingSet",
			"root lacks CAP_SYS_RESOURCE: a Machine sees the new size of a volume only after a restart")
	}
	return ok("volumes can grow while Machines use them")
}
