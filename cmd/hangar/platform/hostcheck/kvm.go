package hostcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Requests of the kernel's KVM interface, see linux/kvm.h.
const (
	kvmGetAPIVersion    = 0xae00
	kvmCreateVM         = 0xae01
	kvmGetVCPUMmapSize  = 0xae04
	kvmCreateVCPU       = 0xae41
	kvmSetMemoryRegion  = 0x4020ae46
	kvmSetTSSAddress    = 0xae47
	kvmRun              = 0xae80
	kvmAPIVersion       = 12
	kvmExitHalt         = 5
	kvmExitReasonOffset = 8 // in struct kvm_run
)

// checkKVM runs a virtual machine for one instruction. A nested or restricted host may have the device, and even
// create virtual machines, but fail to run them.
func checkKVM(string) Check {
	if err := tryKVM(); err != nil {
		return warn("enable virtualization in the firmware, or nested virtualization at the provider; nothing is needed unless you want microVMs",
			"KVM cannot be used: %v; Machines run as gVisor sandboxes, without it", err)
	}
	return ok("runs virtual machines; only microVMs need it, gVisor sandboxes do not")
}

func tryKVM() error {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/kvm: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	version, err := unix.IoctlRetInt(fd, kvmGetAPIVersion)
	if err != nil {
		return fmt.Errorf("get the KVM version: %w", err)
	}
	if version != kvmAPIVersion {
		return fmt.Errorf("the KVM version is %d, not %d", version, kvmAPIVersion)
	}
	vm, err := unix.IoctlRetInt(fd, kvmCreateVM)
	if err != nil {
		return fmt.Errorf("create a virtual machine: %w", err)
	}
	defer func() { _ = unix.Close(vm) }()
	if runtime.GOARCH != "amd64" { // runHalt is for this architecture only
		return nil
	}
	return runHalt(fd, vm)
}

// runHalt puts the instruction HLT where a CPU starts after a reset, 16 bytes below 4 GiB, and runs it.
func runHalt(fd, vm int) error {
	size := unix.Getpagesize()
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	memory[size-16] = 0xf4

	_ = unix.IoctlSetInt(vm, kvmSetTSSAddress, 0xfffbd000) // needed by old Intel CPUs, refused by others
	region := make([]byte, 32)
	binary.NativeEndian.PutUint64(region[8:], 1<<32-uint64(size))
	binary.NativeEndian.PutUint64(region[16:], uint64(size))
	binary.NativeEndian.PutUint64(region[24:], address(memory))
	if err := ioctl(vm, kvmSetMemoryRegion, region); err != nil {
		return fmt.Errorf("add memory: %w", err)
	}
	cpu, err := unix.IoctlRetInt(vm, kvmCreateVCPU)
	if err != nil {
		return fmt.Errorf("add a CPU: %w", err)
	}
	defer func() { _ = unix.Close(cpu) }()
	runSize, err := unix.IoctlRetInt(fd, kvmGetVCPUMmapSize)
	if err != nil {
		return err
	}
	run, err := unix.Mmap(cpu, 0, runSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(run) }()
	for range 1000 {
		if _, err = unix.IoctlRetInt(cpu, kvmRun); !errors.Is(err, unix.EINTR) { // signals of the Go runtime
			break
		}
	}
	if err != nil {
		return fmt.Errorf("run the virtual machine: %w", err)
	}
	if reason := binary.NativeEndian.Uint32(run[kvmExitReasonOffset:]); reason != kvmExitHalt {
		return fmt.Errorf("run the virtual machine: it did not execute its instruction (exit reason %d)", reason)
	}
	return nil
}
