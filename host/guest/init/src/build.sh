#!/bin/sh
# Builds the guest init for this machine's architecture into the given file, or
# into the package above.
set -eu
case $(uname -m) in
x86_64) arch=amd64 flags=-fcf-protection=none ;;
aarch64) arch=arm64 flags= ;;
*) echo "no guest init for $(uname -m)" >&2 && exit 1 ;;
esac
src=$(dirname "$0")
${CC:-cc} -Os -std=gnu11 -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-builtin -fno-pic -no-pie \
	-fno-stack-protector $flags -fno-asynchronous-unwind-tables -fno-ident -fomit-frame-pointer \
	-Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-z,noexecstack -Wl,--hash-style=gnu -s \
	-o "${1:-$src/../init_$arch}" "$src/init.c"
