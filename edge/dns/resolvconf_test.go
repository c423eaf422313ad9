package dns

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestResolversFollowTheirFile: changes of the file take effect shortly afterwards.
func TestResolversFollowTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := NewResolvConf(path)
	expect := func(want ...string) {
		t.Helper()
		r.checked = time.Time{}
		var got []string
		for _, a := range r.List() {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
	expect()
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("# none\nsearch example.com\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\noptions edns0\n", time.Unix(1000, 0))
	expect("127.0.0.53:53", "[fe80::1%eth0]:53")
	write("nameserver 192.0.2.1\nnameserver\nnameserver x\n", time.Unix(2000, 0))
	expect("192.0.2.1:53")
	write("", time.Unix(3000, 0)) // as while it is being written
	expect("192.0.2.1:53")
	write("nameserver 192.0.2.2\n", time.Unix(3000, 0))
	expect("192.0.2.2:53")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("192.0.2.2:53")
	if list := ReadNameservers(path); list != nil {
		t.Error(list)
	}
}
