package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// check is a property that programs expect of their computer.
type check struct {
	name string
	user bool // also runs without privileges
	run  func() error
}

const (
	userID  = 1000
	groupID = 1001
)

func checks() []check {
	return []check{
		{"shared memory", true, sharedMemory},
		{"message queue", true, messageQueue},
		{"terminals", true, pseudoTerminal},
		{"standard links", true, standardLinks},
		{"devices", true, devices},
		{"run directory", false, runDirectory},
		{"tmp directory", true, tmpDirectory},
		{"proc", true, procFiles},
		{"sys", true, sysFiles},
		{"limits", true, limits},
		{"umask", true, umask},
		{"capabilities", false, allCapabilities},
		{"no capabilities", true, noCapabilities},
		{"setuid", false, setuid},
		{"ping raw", false, func() error { return ping("ip4:icmp") }},
		{"ping", true, func() error { return ping("udp4") }},
		{"loopback", true, loopback},
		{"chown", false, chown},
		{"links", true, links},
		{"unix sockets", true, unixSockets},
		{"inotify", true, inotify},
		{"flock", true, flock},
		{"record locks", true, recordLocks},
		{"shared mapping", true, sharedMapping},
		{"user xattr", true, func() error { return xattr("user.hangar") }},
		{"special files", true, specialFiles},
		{"holes and times", true, holesAndTimes},
		{"unlinked file", true, unlinkedFile},
		{"anonymous files", true, anonymousFiles},
		{"mounting", false, mounting},
	}
}

// fidelity runs the checks as root and as a user, and prints each result.
func fidelity(asUser bool) {
	for _, c := range checks() {
		if !asUser {
			say(c.name, c.run())
		} else if c.user {
			say(c.name+" as user", c.run())
		}
	}
	if asUser {
		return
	}
	cmd := exec.Command("/bin/guest", "fidelity", "user")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userID, Gid: groupID, Groups: []uint32{groupID}}}
	must(cmd.Run())
	fmt.Println("done")
}

// capable prints the capabilities of this program.
func capable() {
	effective, err := statusMask("CapEff")
	must(err)
	fmt.Printf("%x\n", effective)
}

func say(name string, err error) {
	if errors.Is(err, errNotApplicable) {
		return
	}
	if err == nil {
		fmt.Printf("%s: ok\n", name)
		return
	}
	fmt.Printf("%s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", "; "))
}

var errNotApplicable = errors.New("not for this user")

func scratch() (string, error) { return os.MkdirTemp("/tmp", "check") }

// scratchFile makes a new file on the root file system.
func scratchFile() (*os.File, error) {
	dir, err := scratch()
	if err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE, 0o644)
}

func want[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}

func mode(path string) (os.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode() & (os.ModePerm | os.ModeSticky | os.ModeDir), nil
}

func sharedMemory() error {
	m, err := mode("/dev/shm")
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		return err
	}
	file, err := os.CreateTemp("/dev/shm", "check")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	return errors.Join(want("mode", m, os.ModeDir|os.ModeSticky|0o777), want("file system", st.Type, unix.TMPFS_MAGIC))
}

func messageQueue() error {
	name := append([]byte(fmt.Sprintf("check%d", os.Getpid())), 0)
	attr := [8]int64{0, 4, 64}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o600, uintptr(unsafe.Pointer(&attr)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("mq_open: %w", errno)
	}
	defer unix.Close(int(fd))
	defer unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])), 0, 0)
	_, err := os.Stat("/dev/mqueue")
	return err
}

func pseudoTerminal() error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return err
	}
	slave, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(slave)
	if _, err := unix.Write(fd, []byte("hello\n")); err != nil {
		return err
	}
	b := make([]byte, 16)
	got, err := unix.Read(slave, b)
	return errors.Join(err, want("line", string(b[:max(got, 0)]), "hello\n"))
}

func standardLinks() error {
	var errs []error
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		got, err := os.Readlink(link)
		errs = append(errs, err, want(link, got, target))
	}
	return errors.Join(errs...)
}

func devices() error {
	var errs []error
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		info, err := os.Stat("/dev/" + name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, want(name, info.Mode()&(os.ModeCharDevice|0o666), os.ModeCharDevice|0o666))
	}
	_, err := os.Stat("/dev/net/tun")
	return errors.Join(append(errs, err, os.WriteFile("/dev/null", []byte("x"), 0))...)
}

func runDirectory() error {
	m, err := mode("/run")
	lock, lockErr := mode("/run/lock")
	return errors.Join(err, lockErr, want("/run", m, os.ModeDir|0o755), want("/run/lock", lock, os.ModeDir|os.ModeSticky|0o777),
		os.WriteFile("/run/check.pid", []byte("1"), 0o644))
}

func tmpDirectory() error {
	m, err := mode("/tmp")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("/tmp", "check")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	return want("/tmp", m, os.ModeDir|os.ModeSticky|0o777)
}

func procFiles() error {
	var errs []error
	for _, name := range []string{
		"self/exe", "self/status", "self/maps", "self/mountinfo", "self/cgroup", "self/limits", "self/oom_score_adj", "cpuinfo", "meminfo",
		"stat", "uptime", "loadavg", "version", "filesystems", "mounts", "net/tcp", "net/dev",
		"sys/kernel/hostname", "sys/kernel/pid_max", "sys/net/core/somaxconn", "sys/vm/overcommit_memory", "sys/vm/max_map_count",
		"sys/net/ipv4/ip_local_port_range", "sys/kernel/random/uuid",
	} {
		f, err := os.Open("/proc/" + name)
		errs = append(errs, err)
		if err == nil {
			_, err = io.CopyN(io.Discard, f, 1)
			errs = append(errs, err, f.Close())
		}
	}
	host, err := os.ReadFile("/proc/sys/kernel/hostname")
	name, _ := os.Hostname()
	return errors.Join(append(errs, err, want("host name", strings.TrimSpace(string(host)), name))...)
}

func sysFiles() error {
	_, err := os.Stat("/sys/devices/system/cpu")
	return err
}

func limits() error {
	var errs []error
	for what, l := range map[string]struct {
		resource int
		least    uint64
	}{
		"open files": {unix.RLIMIT_NOFILE, 10_240}, "processes": {unix.RLIMIT_NPROC, 4096}, "stack": {unix.RLIMIT_STACK, 8 << 20},
		"locked memory": {unix.RLIMIT_MEMLOCK, 8 << 20}, "pending signals": {unix.RLIMIT_SIGPENDING, 1024}, "file size": {unix.RLIMIT_FSIZE, 1 << 50},
		"address space": {unix.RLIMIT_AS, 1 << 50}, "message queues": {unix.RLIMIT_MSGQUEUE, 819_200},
	} {
		var r unix.Rlimit
		err := unix.Getrlimit(l.resource, &r)
		if err == nil && r.Cur < l.least {
			err = fmt.Errorf("%s: %d, want %d", what, r.Cur, l.least)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func umask() error {
	old := unix.Umask(0)
	unix.Umask(old)
	return want("umask", old, 0o022)
}

// statusMask reads a set of capabilities.
func statusMask(name string) (uint64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, name+":"); ok {
			var mask uint64
			_, err := fmt.Sscanf(strings.TrimSpace(text), "%x", &mask)
			return mask, err
		}
	}
	return 0, fmt.Errorf("no %s", name)
}

func allCapabilities() error {
	effective, err := statusMask("CapEff")
	bounding, err2 := statusMask("CapBnd")
	const through = unix.CAP_AUDIT_READ // the last one that every kernel has
	const all = 1<<(through+1) - 1
	return errors.Join(err, err2, want("CapEff", effective&all, all), want("CapBnd", bounding&all, all))
}

func noCapabilities() error {
	if os.Getuid() == 0 {
		return errNotApplicable
	}
	effective, err := statusMask("CapEff")
	if _, openErr := os.ReadFile("/proc/1/environ"); openErr == nil {
		err = errors.Join(err, errors.New("the environment of PID 1 can be read"))
	}
	return errors.Join(err, want("CapEff", effective, 0))
}

func setuid() error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	const path = "/setuid-guest"
	if err := os.WriteFile(path, self, 0o755); err != nil {
		return err
	}
	if err := unix.Chmod(path, 0o4755); err != nil {
		return err
	}
	cmd := exec.Command(path, "euid")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userID, Gid: groupID}}
	out, err := cmd.Output()
	return errors.Join(err, want("effective user", string(out), "0\n"))
}

func ping(network string) error {
	c, err := icmp.ListenPacket(network, "127.0.0.1")
	if err != nil {
		return err
	}
	defer c.Close()
	message := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("hello")}}
	b, err := message.Marshal(nil)
	if err != nil {
		return err
	}
	var to net.Addr = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	if strings.HasPrefix(network, "ip") {
		to = &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)}
	}
	if _, err := c.WriteTo(b, to); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	for in := make([]byte, 512); ; {
		n, _, err := c.ReadFrom(in)
		if err != nil {
			return err
		}
		if m, err := icmp.ParseMessage(1, in[:n]); err == nil && m.Type == ipv4.ICMPTypeEchoReply {
			return nil
		}
	}
}

func loopback() error {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(c, c)
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("x"))
		b := make([]byte, 1)
		_, err2 := io.ReadFull(c, b)
		if err := errors.Join(err, err2, c.Close(), l.Close()); err != nil {
			return err
		}
	}
	return nil
}

func chown() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	link := f.Name() + "-link"
	if err := os.Symlink(f.Name(), link); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(f.Name(), 54_321, 65_534), os.Lchown(link, 7, 4_000_000), unix.Chmod(f.Name(), 0o6711)); err != nil {
		return err
	}
	var st, linkSt unix.Stat_t
	if err := errors.Join(unix.Stat(f.Name(), &st), unix.Lstat(link, &linkSt)); err != nil {
		return err
	}
	return errors.Join(want("uid", st.Uid, 54_321), want("gid", st.Gid, 65_534), want("mode", st.Mode&0o7777, 0o6711),
		want("uid of link", linkSt.Uid, 7), want("gid of link", linkSt.Gid, 4_000_000))
}

func links() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	name := f.Name()
	if err := errors.Join(os.Link(name, name+"-hard"), os.Symlink("file", name+"-soft"), os.Rename(name+"-hard", name+"-moved")); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(name+"-soft", &st); err != nil {
		return err
	}
	return want("links", st.Nlink, 2)
}

func unixSockets() error {
	dir, err := scratch()
	if err != nil {
		return err
	}
	for _, name := range []string{filepath.Join(dir, "socket"), fmt.Sprintf("@check%d", os.Getpid())} {
		for range 2 { // the second time over the first one's socket
			_ = os.Remove(name)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			c, err := net.Dial("unix", name)
			if err != nil {
				return err
			}
			if err := errors.Join(c.Close(), l.Close()); err != nil {
				return err
			}
		}
	}
	d, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "datagrams")})
	if err != nil {
		return err
	}
	return d.Close()
}

func inotify() error {
	dir, err := scratch()
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("x"), 0o600); err != nil {
		return err
	}
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	if err != nil {
		return err
	}
	if !bytes.Contains(b[:n], []byte("new")) {
		return fmt.Errorf("event %q", b[:n])
	}
	return nil
}

func flock() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	g, err := os.Open(f.Name())
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("second lock: %w", err)
	}
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

func recordLocks() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	g, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	} else if err == nil {
		other := unix.Flock_t{Type: unix.F_WRLCK, Len: 5}
		if err := unix.FcntlFlock(g.Fd(), unix.F_OFD_SETLK, &other); !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("second lock: %w", err)
		}
	}
	lock = unix.Flock_t{Type: unix.F_WRLCK, Start: 20, Len: 10}
	return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock)
}

func sharedMapping() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	if err := f.Truncate(8192); err != nil {
		return err
	}
	a, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(a[5000:], "written")
	if err := unix.Msync(a, unix.MS_SYNC); err != nil {
		return err
	}
	text := make([]byte, 7)
	_, err = f.ReadAt(text, 5000)
	_, err2 := f.WriteAt([]byte("back"), 100)
	return errors.Join(err, err2, want("file", string(text), "written"), want("other mapping", string(b[5000:5007]), "written"),
		want("mapping", string(a[100:104]), "back"), f.Sync())
}

func xattr(name string) error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	if err := unix.Setxattr(f.Name(), name, []byte("value"), 0); err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	b := make([]byte, 64)
	n, err := unix.Getxattr(f.Name(), name, b)
	if err != nil {
		return err
	}
	m, err := unix.Listxattr(f.Name(), make([]byte, 256))
	if err == nil && m == 0 {
		err = errors.New("not listed")
	}
	return errors.Join(err, want(name, string(b[:n]), "value"), unix.Removexattr(f.Name(), name))
}

func specialFiles() error {
	dir, err := scratch()
	if err != nil {
		return err
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(fifo))
}

func holesAndTimes() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, 1<<20), f.Truncate(2<<20)); err != nil {
		return err
	}
	when := time.Unix(1_000_000_000, 123_456_789)
	if err := os.Chtimes(f.Name(), when, when); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return errors.Join(want("size", info.Size(), 2<<20), want("time", info.ModTime().UnixNano(), when.UnixNano()))
}

func unlinkedFile() error {
	f, err := scratchFile()
	if err != nil {
		return err
	}
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	_, err = f.WriteString("still here")
	return errors.Join(err, f.Close())
}

func anonymousFiles() error {
	fd, err := unix.MemfdCreate("check", 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return err
	}
	_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

func mounting() error {
	dir, err := scratch()
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		return err
	}
	return unix.Unmount(dir, 0)
}
