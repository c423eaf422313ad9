package signon_test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// python is Debian's, with the library of the package python3-requests-oauthlib.
const python = "/usr/bin/python3"

// TestPythonClient: a third party in Python signs users in with a stock library.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import requests_oauthlib").CombinedOutput(); err != nil {
		t.Fatalf("needs requests-oauthlib, as in Debian's package python3-requests-oauthlib: %v\n%s", err, out)
	}
	w := newWorld(t)
	ann := w.user(t, "ann")
	cmd := exec.CommandContext(t.Context(), python, "testdata/provider.py", w.URL(), redirectURI, string(w.acme))
	var said strings.Builder
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatalf("no address: %v\n%s", cmd.Wait(), said.String())
	}
	b := w.browser(t)
	back := b.allow(t, b.signIn(t, b.get(t, lines.Text()), "ann"), w.acme)
	if back.away == nil {
		t.Fatalf("not sent back: %d %s", back.status, back.body)
	}
	if _, err := stdin.Write([]byte(back.away.String() + "\n")); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	var got struct {
		User, Again   hangar.UserID
		Organizations []struct {
			ID   hangar.OrgID
			Role hangar.Role
		}
		Same  bool
		After int
	}
	err = json.Unmarshal(lines.Bytes(), &got)
	if ended := cmd.Wait(); err != nil || ended != nil {
		t.Fatalf("%v, %v: %s\n%s", err, ended, lines.Text(), said.String())
	}
	if got.User != ann.ID || got.Again != ann.ID || got.Same || got.After != 401 || len(got.Organizations) != 1 ||
		got.Organizations[0].ID != w.acme || got.Organizations[0].Role != hangar.RoleMember {
		t.Errorf("the third party has learnt %+v", got)
	}
}
