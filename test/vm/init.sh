#!/bin/busybox sh
# The first process of the machine: it sets the system up, runs the test and powers off. The console
# is ttyS0; only the test's output goes to ttyS1.

/bin/busybox --install -s /sbin
export PATH=/bin:/sbin HOME=/ LC_ALL=C TMPDIR=/disk/tmp

fail() {
	echo "hangar-vm: $*"
	poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
while read -r module; do
	insmod "/modules/$module.ko" || fail "load the module $module"
done </modules/order
ln -sf /proc/self/mounts /etc/mtab
ip link set lo up

# The disk appears when its driver has found it.
for _ in $(seq 100); do [ -b /dev/vda ] && break; sleep 0.1; done
[ -b /dev/vda ] || fail 'no disk'
# The shell prefers its own program to that of the PATH.
/bin/mke2fs -q -t ext4 -E nodiscard,lazy_itable_init=1,lazy_journal_init=1 /dev/vda || fail 'format the disk'
mount -t ext4 -o discard /dev/vda /disk || fail 'mount the disk'
mkdir -p /disk/tmp /disk/work

exec 3>/dev/ttyS1
stty -F /dev/ttyS1 raw
cd /disk/work
. /command >&3 2>&3 &
wait $!
code=$?
[ "$code" -eq 0 ] || dmesg | tail -n 40 >&3
cd /
if ! umount /disk; then
	echo 'hangar-vm: the test left something on its disk open' >&3
	[ "$code" -ne 0 ] || code=1
fi
echo "hangar-vm-done $code" >&3
exec 3>&-
poweroff -f
