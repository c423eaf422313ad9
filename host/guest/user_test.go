package guest

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
)

// Users of an image have their shells, and every image has root.
func TestUser(t *testing.T) {
	base := layer(t, map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nweb:x:10:20::/srv:/bin/zsh\nshort:x:11:21:Short:/home/short\n",
		"etc/group":  "logs:x:30:web\n",
	})
	for name, test := range map[string]struct {
		layers []string
		want   hangar.SSHUser
		fails  bool
	}{
		"root":  {[]string{base}, hangar.SSHUser{Home: "/root", Shell: "/bin/bash"}, false},
		"web":   {[]string{base}, hangar.SSHUser{UID: 10, GID: 20, Groups: []uint32{30}, Home: "/srv", Shell: "/bin/zsh"}, false},
		"short": {[]string{base}, hangar.SSHUser{UID: 11, GID: 21, Home: "/home/short", Shell: DefaultShell}, false},
		"eve":   {[]string{base}, hangar.SSHUser{}, true},
	} {
		got, err := User(test.layers, name)
		if test.fails {
			if hangar.CodeOf(err) != hangar.CodeInvalid {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		test.want.Name = name
		if err != nil || got.Name != name || got.UID != test.want.UID || got.GID != test.want.GID || !slices.Equal(got.Groups, test.want.Groups) ||
			got.Home != test.want.Home || got.Shell != test.want.Shell {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
	}
	if got, err := User([]string{t.TempDir()}, "root"); err != nil || got.UID != 0 || got.Home != "/root" || got.Shell != DefaultShell {
		t.Errorf("root of an image without files: %+v, %v", got, err)
	}
}
