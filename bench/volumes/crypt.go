package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
)

// openCrypt makes a file system in a file that the kernel encrypts, as volumes are.
func (b *bench) openCrypt(ctx context.Context, undo *harness.Undo) (*place, error) {
	if _, err := os.Stat("/dev/mapper/control"); err != nil {
		return nil, err
	}
	image, key, name := filepath.Join(b.dir, "crypt"), filepath.Join(b.dir, "key"), fmt.Sprintf("hgv%d", os.Getpid())
	mount := filepath.Join(b.dir, "crypt-mount")
	err := errors.Join(os.WriteFile(key, []byte("a key to measure with is no secret"), 0o600), os.WriteFile(image, nil, 0o600),
		os.Truncate(image, int64(b.mb+2048)<<20), os.Mkdir(mount, 0o700))
	if err != nil {
		return nil, err
	}
	if err := command(ctx, os.Environ(), "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks1", "--key-file", key, "--pbkdf-force-iterations", "1000",
		"--hash", "sha256", "--cipher", "aes-xts-plain64", "--key-size", "512", image); err != nil {
		return nil, err
	}
	if err := command(ctx, os.Environ(), "cryptsetup", "open", "--key-file", key, image, name); err != nil {
		return nil, err
	}
	undo.Add(func() error { return command(context.Background(), os.Environ(), "cryptsetup", "close", name) })
	if err := command(ctx, os.Environ(), "mkfs.ext4", "-q", "/dev/mapper/"+name); err != nil {
		return nil, err
	}
	if err := unix.Mount("/dev/mapper/"+name, mount, "ext4", 0, ""); err != nil {
		return nil, err
	}
	undo.Add(func() error { return unix.Unmount(mount, 0) })
	return &place{name: placeCrypt, run: b.onHost(mount), forget: dropCaches}, nil
}
