package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Busybox returns a directory, to be pushed as an image, with Debian's static busybox
// as each of the commands.
func Busybox(tb testing.TB, commands ...string) string {
	tb.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		tb.Fatalf("needs busybox, as in Debian's package busybox-static: %v", err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), b, 0o755); err != nil {
		tb.Fatal(err)
	}
	for _, name := range commands {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}
