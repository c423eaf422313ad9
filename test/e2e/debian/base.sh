# Makes a minimal system in $ROOT. Runs in mount and process namespaces of its own.
debootstrap --variant=minbase --components="$COMPONENTS" "$CODENAME" "$ROOT" "$MIRROR"

# Services are not to be started while packages are installed.
printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
chmod 755 "$ROOT/usr/sbin/policy-rc.d"
printf '%s' "$SOURCES" >"$ROOT/etc/apt/sources.list"
printf 'APT::Install-Recommends "false";\nAcquire::Languages "none";\n' >"$ROOT/etc/apt/apt.conf.d/90image"
printf 'force-unsafe-io\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\npath-exclude=/usr/share/doc/*\npath-include=/usr/share/doc/*/copyright\n' \
	>"$ROOT/etc/dpkg/dpkg.cfg.d/90image"

# What belongs to this host, or can be fetched again. Devices are the sandbox's.
umount "$ROOT/proc" "$ROOT/sys" 2>/dev/null || true
find "$ROOT/dev" -mindepth 1 -delete
find "$ROOT/var/cache/apt" "$ROOT/var/lib/apt/lists" "$ROOT/var/log" -type f -delete
find "$ROOT/usr/share/man" "$ROOT/usr/share/locale" -mindepth 1 -delete 2>/dev/null || true
for section in 1 2 3 4 5 6 7 8; do # which scripts of packages link into
	mkdir -p "$ROOT/usr/share/man/man$section"
done
rm -rf "$ROOT/debootstrap" "$ROOT/etc/hostname"
: >"$ROOT/etc/resolv.conf"
