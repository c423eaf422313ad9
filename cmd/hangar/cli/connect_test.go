package cli

import (
	"net"
	"testing"
)

func TestPlainHTTPIsForThisComputer(t *testing.T) {
	t.Parallel()
	for url, refused := range map[string]bool{
		"http://127.0.0.1:4280": false, "http://127.9.9.9": false, "http://[::1]:4280": false, "http://[::ffff:127.0.0.1]": false,
		"http://localhost:4280": false, "http://api.hangar.localhost": false, "unix:///run/hangar.sock": false, "https://api.example.com": false,
		"http://10.0.0.1:4280": true, "http://[fdaa::3]:4280": true, "http://api.example.com": true, "http://0.0.0.0:4280": true,
		"http://localhost.example.com": true, "http://127.0.0.1.example.com": true, "http://127.0.0.1@example.com": true,
	} {
		c := &Invocation{Target: Target{Getenv: func(string) string { return "" }, URL: url, Token: "secret"}}
		if _, err := c.Endpoint(); (err != nil) != refused {
			t.Errorf("%s: %v", url, err)
		}
		c.Insecure = true
		if _, err := c.Endpoint(); err != nil {
			t.Errorf("%s with --insecure: %v", url, err)
		}
		c.Insecure, c.Getenv = false, func(name string) string { return map[string]string{"HANGAR_INSECURE": "1"}[name] }
		if _, err := c.Endpoint(); err != nil {
			t.Errorf("%s with HANGAR_INSECURE: %v", url, err)
		}
	}
	// Requests to one of the computer's own addresses do not leave it.
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		ip := a.(*net.IPNet).IP
		c := &Invocation{Target: Target{Getenv: func(string) string { return "" }, URL: "http://" + net.JoinHostPort(ip.String(), "4280"), Token: "secret"}}
		if _, err := c.Endpoint(); err != nil {
			t.Errorf("%s: %v", c.URL, err)
		}
	}
	for text, want := range map[string]string{
		"api.example.com": "https://api.example.com", "127.0.0.1:4280/": "http://127.0.0.1:4280", "[::1]:4280": "http://[::1]:4280",
		"localhost": "http://localhost", "10.0.0.1:4280": "https://10.0.0.1:4280", "http://x/": "http://x",
	} {
		if got := AddScheme(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "example.com:1": "example.com:1",
	} {
		if got := Reachable(addr); got != want {
			t.Errorf("%s: got %s", addr, got)
		}
	}
}
