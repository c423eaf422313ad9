package cli

import (
	"errors"
	"net/url"
	"os/exec"
	"runtime"
)

// OpenBrowser opens an http or https page with the program that BROWSER names, or else the browser of the desktop. The
// program outlives the command. ended waits for it; many programs end at once and leave the page to another.
func (t *Target) OpenBrowser(page string) (ended func() error, err error) {
	u, err := url.Parse(page)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the page has no http or https URL")
	}
	program := t.Getenv("BROWSER")
	if program == "" {
		program = "xdg-open"
		if runtime.GOOS == "darwin" {
			program = "open"
		}
		if runtime.GOOS == "linux" && t.Getenv("DISPLAY") == "" && t.Getenv("WAYLAND_DISPLAY") == "" {
			return nil, errors.New("there is no desktop")
		}
	}
	cmd := exec.Command(program, u.String()) //nolint:noctx // it is the user's, and outlives the command
	return cmd.Wait, cmd.Start()
}
