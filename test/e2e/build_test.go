package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hangar-platform/hangar"
	remote "github.com/hangar-platform/hangar/cmd/hangar/deploy/build"
	"github.com/hangar-platform/hangar/test/daemon"
)

// buildkit is where `make buildkit` leaves buildkitd and buildctl.
const buildkit = "../../.tools/buildkit-v0.34.2"

// builderImage is a directory with BuildKit, Debian's runc and what it is linked with, and a shell.
func builderImage(t *testing.T) string {
	t.Helper()
	dir := daemon.Busybox(t, "sh", "mount", "mkdir", "touch", "date", "sleep", "mktemp", "rm", "tar", "cat")
	put := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		check(t, err)
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755))
		check(t, os.WriteFile(filepath.Join(dir, to), b, 0o755))
	}
	for _, program := range []string{"buildkitd", "buildctl"} {
		put(filepath.Join(buildkit, program), "/bin/"+program)
	}
	runc, err := exec.LookPath("runc")
	check(t, err)
	put(runc, "/bin/runc")
	linked, err := exec.CommandContext(t.Context(), "ldd", runc).Output()
	check(t, err)
	for word := range strings.FieldsSeq(string(linked)) {
		if filepath.IsAbs(word) {
			put(word, word)
		}
	}
	for _, d := range []string{"/tmp", "/run", "/sys/fs/cgroup", "/etc", "/var/lib"} {
		check(t, os.MkdirAll(dir+d, 0o755))
	}
	check(t, os.WriteFile(dir+"/etc/passwd", []byte("root:x:0:0:root:/:/bin/sh\n"), 0o644))
	return dir
}

// TestRemoteBuild deploys a Dockerfile that BuildKit builds in a Machine: it copies files, and runs commands.
func TestRemoteBuild(t *testing.T) {
	if short() {
		t.Skip("BuildKit takes minutes to compile: no image is built in a Machine")
	}
	p := start(t)
	image := p.d.Push(builderImage(t), "buildkit:1", "--env", "PATH=/bin")
	dir := t.TempDir()
	program, err := exec.LookPath("busybox")
	check(t, err)
	b, err := os.ReadFile(program)
	check(t, err)
	check(t, os.WriteFile(dir+"/busybox", b, 0o755))
	const dockerfile = `FROM scratch AS base
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
FROM base
ARG WORD
RUN mkdir /www && echo "$WORD $(id -u) $(uname -s)" >/www/index.html
COPY page /www/page
ENV PATH=/bin
CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]
`
	check(t, os.WriteFile(dir+"/Dockerfile", []byte(dockerfile), 0o644))
	check(t, os.WriteFile(dir+"/.dockerignore", []byte("secret\n"), 0o644))
	check(t, os.WriteFile(dir+"/secret", []byte("not sent"), 0o644))
	check(t, os.WriteFile(dir+"/hangar.toml", []byte("app = \"built\"\n[build.args]\nWORD = \"made\"\n[http_service]\ninternal_port = 8080\n"), 0o644))
	p.d.Run("apps", "create", "built")
	for _, page := range []string{"first", "second"} {
		check(t, os.WriteFile(dir+"/page", []byte(page+"\n"), 0o644))
		p.d.Run("deploy", dir, "--remote-only", "--builder-image", image, "--smoke-time", "0")
		if got, want := p.d.Run("ssh", "console", "built", "-C", "cat /www/index.html /www/page"), fmt.Sprintf("made 0 Linux\n%s\n", page); got != want {
			t.Errorf("the image has %q, not %q", got, want)
		}
	}
	builders, err := p.c.Machines(t.Context(), "builder-personal", hangar.MachineFilter{})
	check(t, err)
	if len(builders) != 1 {
		t.Errorf("%d Machines build", len(builders))
	}
	// A failure says why.
	check(t, os.WriteFile(dir+"/Dockerfile", []byte("FROM scratch\nCOPY secret /\n"), 0o644))
	if _, err := p.d.Try("deploy", dir, "--remote-only", "--builder-image", image); err == nil || !strings.Contains(err.Error(), `"/secret": not found`) {
		t.Errorf("a build of a missing file: %v", err)
	}
}

// TestBuilderEnds: the Machine that builds ends by itself when nothing was built for a while, not during a build that
// takes longer, and the next build starts it again. Scripts play BuildKit, so that nothing is compiled.
func TestBuilderEnds(t *testing.T) {
	p := start(t)
	const idle = 2
	root := daemon.Busybox(t, "sh", "mount", "mkdir", "rmdir", "touch", "date", "sleep", "mktemp", "rm", "tar", "cat")
	tag, err := name.NewTag("built:1")
	check(t, err)
	check(t, tarball.WriteToFile(filepath.Join(root, "image.tar"), tag, empty.Image))
	for path, text := range map[string]string{
		"bin/buildkitd": "#!/bin/sh\nexec sleep 100000\n",
		"bin/buildctl":  fmt.Sprintf("#!/bin/sh\n[ \"$1\" = debug ] && exit 0\nsleep %d\ncat /image.tar\n", 3*idle),
	} {
		check(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o755))
	}
	for _, d := range []string{"/tmp", "/run", "/sys/fs/cgroup", "/var/lib"} {
		check(t, os.MkdirAll(root+d, 0o755))
	}
	builder := remote.Builder{Image: p.d.Push(root, "builder:1", "--env", "PATH=/bin"), Idle: idle * time.Second}
	dir := t.TempDir()
	check(t, os.WriteFile(dir+"/Dockerfile", []byte("FROM scratch\n"), 0o644))
	var first hangar.MachineID
	for range 2 {
		image, err := remote.Remote(t.Context(), p.c, hangar.OrgPersonal, builder, remote.Spec{Dir: dir}, t.Output())
		check(t, err)
		check(t, image.Close())
		machines, err := p.c.Machines(t.Context(), "builder-personal", hangar.MachineFilter{})
		check(t, err)
		if len(machines) != 1 || first != "" && machines[0].ID != first {
			t.Fatalf("%d Machines build; the first was %s", len(machines), first)
		}
		m := &machine{ref: machines[0].Ref(), p: p}
		first = m.ref.ID
		if _, err := p.c.WaitMachine(t.Context(), m.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}); err != nil {
			t.Fatalf("the Machine does not end: %v", err)
		}
		if exit := m.exit(t); exit.RequestedStop || exit.ExitCode != 0 {
			t.Errorf("exit: %+v", exit)
		}
	}
}
