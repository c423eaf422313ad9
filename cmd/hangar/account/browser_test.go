package account

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// browser prints the page, and that it is open still after it was told to go on.
const browser = `#!/bin/sh
cd "${0%/*}" && exec 3>said && echo "$1" >&3 && read -r line <heard && echo open >&3
`

// TestTheBrowserStays: the program that shows the page does not end with the sign-in.
func TestTheBrowserStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, said, heard := filepath.Join(dir, "browser"), filepath.Join(dir, "said"), filepath.Join(dir, "heard")
	if err := os.WriteFile(program, []byte(browser), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, fifo := range []string{said, heard} {
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := commands{cli.New(cli.Streams{Stdout: io.Discard, Stderr: io.Discard}, func(name string) string {
		return map[string]string{"BROWSER": program}[name]
	})}
	p := client.New("http://127.0.0.1:1", "")
	defer p.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := c.signInByBrowser(t.Context(), p, true)
		ended <- err
	}()
	from, err := os.Open(said)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	lines := bufio.NewScanner(from)
	lines.Scan()
	page, err := url.Parse(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	back := url.Values{"state": {page.Query().Get("state")}, "error": {"access_denied"}}
	res, err := http.Get(page.Query().Get("redirect_uri") + "?" + back.Encode())
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := <-ended; hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Errorf("the sign-in: %v", err)
	}
	to, err := os.OpenFile(heard, os.O_RDWR, 0) // does not wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.WriteString(to, "go on\n"); err != nil {
		t.Fatal(err)
	}
	if lines.Scan(); lines.Text() != "open" {
		t.Error("the browser has ended with the sign-in")
	}
}
