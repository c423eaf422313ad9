package network

import (
	"testing"
)

// TestProxyPorts reads LOCAL[:REMOTE].
func TestProxyPorts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text          string
		local, remote int
	}{{"5432", 5432, 5432}, {"0:5432", 0, 5432}, {"15432:5432", 15432, 5432}, {"65535", 65535, 65535}} {
		local, remote, err := parsePorts(test.text)
		if err != nil || local != test.local || remote != test.remote {
			t.Errorf("%s: %d, %d, %v", test.text, local, remote, err)
		}
	}
	for _, text := range []string{"", ":", "0", "1:", ":1", "-1:1", "1:2:3", "1:65536", "a"} {
		if _, _, err := parsePorts(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
