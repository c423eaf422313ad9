package mount

import (
	"errors"
	"testing"
)

func TestCheckKernel(t *testing.T) {
	for release, ok := range map[string]bool{
		"6.18.44-fc-v782": true, "5.4.0": true, "5.10.0-28-amd64": true, "10.0": true,
		"5.3.18": false, "4.4.0": false, "4.19.0-gvisor": false, "6.1.0-gvisor": false, "": false, "linux": false,
	} {
		if err := checkKernel(release); (err == nil) != ok || !ok && !errors.Is(err, ErrKernel) {
			t.Errorf("%q: %v", release, err)
		}
	}
}
