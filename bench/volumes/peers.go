package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// The programs that are compared with.
const (
	peerKopia  = "kopia"
	peerRestic = "restic"
	peerQEMU   = "qemu-img"

	kopiaVersion = "v0.22.3"
	password     = "of a measurement"
)

// peer makes a store for an image, which may use a directory.
type peer func(image, dir string) *store

// peers returns all that are installed or can be, and that are not left out.
func (b *bench) peers(ctx context.Context) ([]peer, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache = filepath.Join(cache, "hangar-bench")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, err
	}
	all := []peer{copies}
	for _, p := range []struct {
		name  string
		fetch func(ctx context.Context, cache string) (program string, err error)
		peer  func(program string) peer
	}{
		{peerKopia, fetchKopia, kopia},
		{peerRestic, fetchRestic, restic},
		{peerQEMU, nil, qemu},
	} {
		if b.skip.Has(p.name) {
			continue
		}
		program, err := exec.LookPath(p.name)
		if err != nil && p.fetch != nil {
			program, err = p.fetch(ctx, cache)
		}
		if err != nil {
			b.note("no %s: %s", p.name, firstLine(err))
			continue
		}
		all = append(all, p.peer(program))
	}
	return all, nil
}

// fetchKopia builds it from its module, once.
func fetchKopia(ctx context.Context, cache string) (string, error) {
	program := filepath.Join(cache, "kopia-"+kopiaVersion)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	dir, err := os.MkdirTemp(cache, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	// A module of its own: `go install` asks for the list of all versions, which not
	// every mirror has.
	mod := "module peer\n\nrequire github.com/kopia/kopia " + kopiaVersion + "\n"
	use := "package peer\n\nimport _ \"github.com/kopia/kopia\"\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600), os.WriteFile(filepath.Join(dir, "peer.go"), []byte("//go:build tools\n\n"+use), 0o600)); err != nil {
		return "", err
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
	err = command(ctx, env, "go", "build", "-C", dir, "-o", filepath.Join(dir, "kopia"), "github.com/kopia/kopia")
	if err == nil {
		err = os.Rename(filepath.Join(dir, "kopia"), program)
	}
	return program, err
}

// fetchRestic unpacks the distribution's package, without installing it.
func fetchRestic(ctx context.Context, cache string) (string, error) {
	program := filepath.Join(cache, "restic", "usr", "bin", "restic")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	script := `cd "$1" && rm -rf restic new && mkdir new && cd new && apt-get download -q restic && dpkg -x restic_*.deb tree && mv tree ../restic && rm -r ../new`
	return program, command(ctx, os.Environ(), "sh", "-euc", script, "sh", cache)
}

// flush waits until a file system has everything on its disk.
func flush(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// allocated is what a file takes of the disk.
func allocated(info fs.FileInfo) int64 {
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// program is a store that commands make, each in a list of arguments.
func program(name, holds string, env []string, commands map[string][]string) *store {
	run := func(what string) func(context.Context) error {
		return func(ctx context.Context) error {
			args := commands[what]
			if len(args) == 0 {
				return nil
			}
			return command(ctx, append(os.Environ(), env...), args[0], args[1:]...)
		}
	}
	return &store{
		name: name, holds: holds, begin: run("begin"), restore: run("restore"),
		save: func(ctx context.Context) (*hangar.Snapshot, error) { return nil, run("save")(ctx) },
		end:  func(context.Context) error { return nil }, // its directory goes
	}
}

// copies is what nothing can be faster than that neither shares nor compresses.
func copies(image, dir string) *store {
	holds := filepath.Join(dir, "copies")
	saved := filepath.Join(holds, "saved")
	return program(storeCopy, holds, nil, map[string][]string{
		"save":    {"cp", "--sparse=auto", image, saved},
		"restore": {"cp", "--sparse=auto", saved, filepath.Join(dir, "copied")},
	})
}

func qemu(tool string) peer {
	return func(image, dir string) *store {
		holds := filepath.Join(dir, "qcow2")
		saved := filepath.Join(holds, "saved")
		return program(peerQEMU, holds, nil, map[string][]string{
			// Locks are for writers, and the Machine is idle.
			"save":    {tool, "convert", "-U", "-f", "raw", "-O", "qcow2", image, saved},
			"restore": {tool, "convert", "-f", "qcow2", "-O", "raw", saved, filepath.Join(dir, "converted")},
		})
	}
}

func restic(tool string) peer {
	return func(image, dir string) *store {
		holds := filepath.Join(dir, "restic")
		args := func(more ...string) []string {
			return append([]string{tool, "--quiet", "--repo", holds, "--cache-dir", filepath.Join(dir, "restic-cache")}, more...)
		}
		return program(peerRestic, holds, []string{"RESTIC_PASSWORD=" + password}, map[string][]string{
			"begin":   args("init"),
			"save":    args("backup", image),
			"restore": args("restore", "latest", "--target", filepath.Join(dir, "restic-restored")),
		})
	}
}

func kopia(tool string) peer {
	return func(image, dir string) *store {
		holds := filepath.Join(dir, "kopia")
		config := filepath.Join(dir, "kopia.config")
		// begin and restore are several commands.
		script := fmt.Sprintf(`k() { %q --config-file=%q --log-dir=%q --no-progress "$@"; }
case "$1" in
begin) k repository create filesystem --path=%q --cache-directory=%q && k policy set --global --compression=zstd-fastest ;;
save) k snapshot create %q ;;
restore) k snapshot restore "$(k snapshot list --json | sed -n 's/^.*"id":"\([0-9a-f]*\)".*$/\1/p' | tail -n 1)" %q ;;
esac`, tool, config, filepath.Join(dir, "kopia-log"), holds, filepath.Join(dir, "kopia-cache"), filepath.Dir(image), filepath.Join(dir, "kopia-restored"))
		sh := func(what string) []string { return []string{"sh", "-eu", "-c", script, "sh", what} }
		return program(peerKopia, holds, []string{"KOPIA_PASSWORD=" + password, "KOPIA_CHECK_FOR_UPDATES=false"}, map[string][]string{
			"begin": sh("begin"), "save": sh("save"), "restore": sh("restore"),
		})
	}
}
