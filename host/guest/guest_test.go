package guest

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func layer(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestArguments(t *testing.T) {
	img := Image{Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}}
	for name, tc := range map[string]struct {
		init hangar.Init
		want string
	}{
		"image alone":         {hangar.Init{}, "/entry serve"},
		"command replaced":    {hangar.Init{Cmd: []string{"migrate"}}, "/entry migrate"},
		"entrypoint replaced": {hangar.Init{Entrypoint: []string{"/bin/sh", "-c"}}, "/bin/sh -c serve"},
		"exec replaces all":   {hangar.Init{Exec: []string{"/bin/true"}, Cmd: []string{"x"}}, "/bin/true"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(arguments(img, tc.init), " "); got != tc.want {
				t.Errorf("arguments = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUsers(t *testing.T) {
	base := layer(t, map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:998::/var/lib/postgresql:/bin/sh\n",
		"etc/group":  "root:x:0:\npostgres:x:998:\nssl-cert:x:101:postgres,other\n",
	})
	top := layer(t, map[string]string{"etc/passwd": "root:x:0:0::/root:\nweb:x:1000:1000::/srv:\n"})
	outside := layer(t, map[string]string{"passwd": "evil:x:0:0::/:\n"})
	escape := layer(t, map[string]string{"etc/passwd": "-> " + filepath.Join(outside, "passwd")})

	for name, tc := range map[string]struct {
		layers []string
		user   string
		want   account
		fails  bool
	}{
		"default":               {[]string{base}, "", account{home: "/root"}, false},
		"name with groups":      {[]string{base}, "postgres", account{uid: 999, gid: 998, groups: []uint32{101}, home: "/var/lib/postgresql"}, false},
		"name and group":        {[]string{base}, "postgres:ssl-cert", account{uid: 999, gid: 101, home: "/var/lib/postgresql"}, false},
		"listed number":         {[]string{base}, "999", account{uid: 999, gid: 998, groups: []uint32{101}, home: "/var/lib/postgresql"}, false},
		"unlisted number":       {[]string{base}, "1234", account{uid: 1234, gid: 1234, home: "/"}, false},
		"numbers":               {[]string{base}, "12:34", account{uid: 12, gid: 34, home: "/"}, false},
		"top layer wins":        {[]string{base, top}, "web", account{uid: 1000, gid: 1000, home: "/srv"}, false},
		"hidden below":          {[]string{base, top}, "postgres", account{}, true},
		"unknown name":          {[]string{base}, "nobody-here", account{}, true},
		"unknown group":         {[]string{base}, "postgres:nope", account{}, true},
		"no files at all":       {[]string{t.TempDir()}, "", account{home: "/root"}, false},
		"link out of the layer": {[]string{escape}, "evil", account{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lookupUser(tc.layers, tc.user)
			if (err != nil) != tc.fails {
				t.Fatalf("error = %v, want failure %v", err, tc.fails)
			}
			if tc.fails {
				if hangar.CodeOf(err) != hangar.CodeInvalid {
					t.Errorf("code = %s, want invalid", hangar.CodeOf(err))
				}
				return
			}
			if got.uid != tc.want.uid || got.gid != tc.want.gid || got.home != tc.want.home || !slices.Equal(got.groups, tc.want.groups) {
				t.Errorf("lookupUser = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestEnvironmentPrecedence(t *testing.T) {
	m := &hangar.Machine{
		ID: "0123456789abcd", App: "web", AppID: "web", Region: "loc", InstanceID: "01J", PrivateIP: netip.MustParseAddr("fdaa:0:1::2"),
		ImageRef: hangar.ImageRef{Registry: "r", Repository: "n", Tag: "1"},
		Config: hangar.MachineConfig{
			Env:      map[string]string{"A": "config", "FLY_REGION": "xyz"},
			Metadata: map[string]string{"fly_process_group": "worker"},
			Guest:    &hangar.Guest{MemoryMB: 512},
		},
	}
	all, err := Resolve(Image{Cmd: []string{"x"}, Env: []string{"A=image", "B=image", "PATH=/opt"}}, m, nil, netip.MustParseAddr("2001:db8::7"))
	if err != nil {
		t.Fatal(err)
	}
	p := all[0]
	for _, want := range []string{
		"A=config", "B=image", "PATH=/opt", "HOME=/root", "FLY_REGION=loc", "PLATFORM_REGION=loc", "FLY_MACHINE_ID=0123456789abcd",
		"FLY_ALLOC_ID=0123456789abcd", "FLY_PROCESS_GROUP=worker", "FLY_VM_MEMORY_MB=512", "FLY_IMAGE_REF=r/n:1", "FLY_PRIVATE_IP=fdaa:0:1::2",
		"FLY_PUBLIC_IP=2001:db8::7", "PLATFORM_PUBLIC_IP=2001:db8::7",
	} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("environment lacks %q: %q", want, p.Env)
		}
	}
}

// TestTooLongToExecute: arguments that a kernel would refuse are refused before, wherever they
// come from.
func TestTooLongToExecute(t *testing.T) {
	longest := strings.Repeat("x", hangar.MaxExecString)
	value := longest[len("V="):]
	for _, tt := range []struct {
		name    string
		img     Image
		secrets map[string]string
		want    string // in the error; empty: none
	}{
		{"longest argument", Image{Cmd: []string{"run", longest}}, nil, ""},
		{"longer argument", Image{Entrypoint: []string{"run"}, Cmd: []string{longest + "x"}}, nil, "argument 1 has 131072 bytes, more than the 131071"},
		{"longest variable", Image{Cmd: []string{"run"}, Env: []string{"V=" + value}}, nil, ""},
		{"longer variable", Image{Cmd: []string{"run"}, Env: []string{"V=" + value + "x"}}, nil, "variable V has 131072 bytes"},
		{"longer secret", Image{Cmd: []string{"run"}}, map[string]string{"V": value + "x"}, "variable V has 131072 bytes"},
		{"all", Image{Cmd: slices.Repeat([]string{longest}, 15)}, nil, ""},
		{"too much of all", Image{Cmd: slices.Repeat([]string{longest}, 16)}, nil, "bytes, more than the 2097152"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Resolve(tt.img, &hangar.Machine{}, tt.secrets, netip.Addr{})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (hangar.ReasonOf(err) != hangar.ReasonBadConfig || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Resolve: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNothingToRun(t *testing.T) {
	_, err := Resolve(Image{}, &hangar.Machine{}, nil, netip.Addr{})
	if hangar.ReasonOf(err) != hangar.ReasonBadConfig {
		t.Errorf("Resolve of an empty image = %v, want bad_config", err)
	}
}
