# Installs $PACKAGES over the system in $BASE and runs $WORK/setup in it;
# what that changes is in $WORK/upper. Prints what $WORK/version prints as its last
# line. Runs in mount and process namespaces of its own.
root=$WORK/merged
mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$WORK/upper,workdir=$WORK/overlay" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom; do
	: >"$root/dev/$device"
	mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# Not a part of the image, and shared by all builds.
mount --bind "$DOWNLOADS/lists" "$root/var/lib/apt/lists"
mount --bind "$DOWNLOADS/archives" "$root/var/cache/apt/archives"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
cp "$WORK/setup" "$WORK/version" "$root/tmp"

inside() {
	chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"
}
inside apt-get update -qq >&2
set -f # names of packages may be patterns, for apt
# shellcheck disable=SC2086 # one word per package
inside apt-get install -qq -y $PACKAGES >&2
set +f
inside sh -eu /tmp/setup >&2

rm -f "$root"/var/cache/apt/*.bin "$root"/var/log/apt/* "$root"/var/log/dpkg.log "$root"/var/log/alternatives.log \
	"$root"/var/cache/ldconfig/aux-cache "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
inside sh -eu /tmp/version
