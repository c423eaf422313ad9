package main_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/replica/config"
)

// TestExample runs the App of examples/database beside a node, as on its Machines.
func TestExample(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3: the App of the example is not tested")
	}
	app, err := filepath.Abs("../../examples/database/app.py")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(app); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	exe := filepath.Join(root, "hangar-db")
	if err := gobuild.Build(context.Background(), exe, "github.com/hangar-platform/hangar/cmd/hangar-db"); err != nil {
		t.Fatal(err)
	}
	var addresses [3]string // of the node, its proxy and the App
	for i := range addresses {
		if addresses[i], err = freeport.Address(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\ncapture: tail\nlease: {type: static, hostname: one}\nproxy: {addr: %q, target: %q, db: notes.db}\n",
		root+"/dbs", root+"/data", addresses[0], addresses[1], addresses[2])
	file := filepath.Join(root, "litefs.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(addresses[2], ":")
	cmd := exec.Command(exe, "mount", "--config", file, "--", python, app)
	cmd.Env = append(os.Environ(), "DATABASE="+root+"/dbs/notes.db", "PORT="+port)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			t.Log(lines.Text())
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-logged
	})
	ask := func(method, text string) (int, string, []*http.Cookie) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addresses[1]+"/", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return 0, "", nil
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b), resp.Cookies()
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if status, _, _ := ask(http.MethodGet, ""); status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the App does not answer")
		}
		<-time.After(20 * time.Millisecond)
	}
	for n, text := range []string{"buy milk", "drink it"} {
		status, id, cookies := ask(http.MethodPost, text)
		if status != http.StatusCreated || id != fmt.Sprintln(n+1) || len(cookies) != 2 || cookies[0].Name != "__txid" || cookies[1].Name != "__txepoch" {
			t.Errorf("%s: %d %s %v", text, status, id, cookies)
		}
	}
	if _, list, _ := ask(http.MethodGet, ""); list != "1 buy milk\n2 drink it\n" {
		t.Error(list)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-logged
	if err := cmd.Wait(); err != nil {
		t.Error("end: ", err)
	}
}

// TestExampleConfig reads the configuration of the example as a Machine does.
func TestExampleConfig(t *testing.T) {
	b, err := os.ReadFile("../../examples/database/litefs.yml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(b, func(string) string { return "" }, &config.Machine{App: "notes", ID: "3d8d413b29d089"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Lease.Type != config.LeasePlatform || c.Lease.Hostname != "3d8d413b29d089" || !c.Candidate() || c.Proxy.DB != "notes.db" ||
		c.Lease.AdvertiseURL != "http://3d8d413b29d089.vm.notes.internal:20202" {
		t.Errorf("%+v", c)
	}
}
