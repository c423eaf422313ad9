package flagfile_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar/internal/flagfile"
)

// settings have a flag of every type.
type settings struct {
	region  string
	count   int
	size    int64
	port    uint16
	ratio   float64
	on      bool
	wait    time.Duration
	allow   []string
	peers   []string
	aside   string
	secrets bool
}

func newFlags() (*settings, *pflag.FlagSet) {
	s := &settings{}
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags.StringVar(&s.region, "region", "loc", "where it is")
	flags.IntVar(&s.count, "count", 3, "how many")
	flags.Int64Var(&s.size, "size", 1<<40, "how large")
	flags.Uint16Var(&s.port, "port", 80, "where it listens")
	flags.Float64Var(&s.ratio, "ratio", 1.5, "how full")
	flags.BoolVar(&s.on, "on", false, "whether")
	flags.DurationVar(&s.wait, "wait", time.Minute, "how long "+strings.Repeat("it may take ", 20))
	flags.StringSliceVar(&s.allow, "allow-egress", nil, "networks")
	flags.StringArrayVar(&s.peers, "peer", []string{"a,b"}, "peers")
	flags.StringVar(&s.aside, "aside", "", "not for people")
	_ = flags.MarkHidden("aside")
	flags.BoolVar(&s.secrets, "forget-secrets", false, "once")
	flagfile.Exclude(flags, "forget-secrets")
	return s, flags
}

func write(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hangar.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApplySetsEveryType(t *testing.T) {
	path := write(t, `# a comment
region: ams
count: 0x10
size: 5
port: 8080
ratio: 2
on: true
wait: 90s
allow-egress: [192.168.7.0/24, "fd12::/32"]
peer:
  - a,b
  - 7
`, 0o644)
	file, err := flagfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	s, flags := newFlags()
	if err := file.Apply(flags, nil); err != nil {
		t.Fatal(err)
	}
	if s.region != "ams" || s.count != 16 || s.size != 5 || s.port != 8080 || s.ratio != 2 || !s.on || s.wait != 90*time.Second {
		t.Errorf("got %+v", s)
	}
	if !slices.Equal(s.allow, []string{"192.168.7.0/24", "fd12::/32"}) || !slices.Equal(s.peers, []string{"a,b", "7"}) {
		t.Errorf("lists %v, %v", s.allow, s.peers)
	}
	if file.Line("region") != 2 || file.Line("peer") != 10 || file.Line("aside") != 0 {
		t.Errorf("lines %d, %d, %d", file.Line("region"), file.Line("peer"), file.Line("aside"))
	}
	if file.Text("region") != "ams" || file.Text("aside") != "" {
		t.Errorf("texts %q, %q", file.Text("region"), file.Text("aside"))
	}
}

func TestFlagsOverrideTheFile(t *testing.T) {
	file, err := flagfile.Load(write(t, "region: ams\ncount: 5\nport: 99999\n", 0o600))
	if err != nil {
		t.Fatal(err)
	}
	s, flags := newFlags()
	if err := flags.Parse([]string{"--region", "fra", "--port", "1"}); err != nil {
		t.Fatal(err)
	}
	if err := file.Apply(flags, func(name string) bool { return name == "count" }); err != nil {
		t.Fatal(err)
	}
	if s.region != "fra" || s.count != 3 || s.port != 1 || file.Line("region") != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestErrorsNameLineAndRule(t *testing.T) {
	for content, want := range map[string]string{
		"region: ams\nregoin: fra\n":            ":2: regoin: is not a key; did you mean region?",
		"allow_egress: []\n":                    ":1: allow_egress: is not a key; did you mean allow-egress?",
		"zzzzzzzz: 1\n":                         ":1: zzzzzzzz: is not a key",
		"region: ams\n\nregion: fra\n":          ":3: region: is in line 1 already",
		"forget-secrets: true\n":                ":1: forget-secrets: is for one start: give it as the flag --forget-secrets",
		"region:\n":                             ":1: region: has no value: give it one, or remove the line",
		"region: [a]\n":                         ":1: region: must be text",
		"region: true\n":                        ":1: region: must be text",
		"region: !own x\n":                      ":1: region: must be text",
		"count: many\n":                         ":1: count: must be a whole number",
		"count: 1.5\n":                          ":1: count: must be a whole number",
		"count: \"1\"\n":                        ":1: count: must be a whole number",
		"port: 70000\n":                         ":1: port: must be a whole number (got 70000)",
		"ratio: half\n":                         ":1: ratio: must be a number",
		"ratio: .nan\n":                         ":1: ratio: must be a number (got .nan)",
		"on: yes\n":                             ":1: on: must be true or false",
		"on: 1\n":                               ":1: on: must be true or false",
		"wait: 30\n":                            ":1: wait: must be a duration, like 30s or 12h",
		"wait: soon\n":                          ":1: wait: must be a duration, like 30s or 12h (got soon)",
		"allow-egress: 10.0.0.0/8\n":            ":1: allow-egress: must be a list, like [A, B]",
		"allow-egress: [[10.0.0.0/8]]\n":        ":1: allow-egress: must be a list, like [A, B]",
		"allow-egress: {a: b}\n":                ":1: allow-egress: must be a list, like [A, B]",
		"- region\n":                            ":1: must be lines like KEY: VALUE",
		"ams\n":                                 ":1: must be lines like KEY: VALUE",
		"[a, b]: c\n":                           ":1: a key must be the name of a flag",
		"region: ams\n---\nregion: fra\n":       ": a second document: the file must have one",
		"region: ams\n\tcount: 1\n":             ": not YAML: ",
		"region: 'x\n":                          ": not YAML: ",
		"x: &a [*a]\n":                          "",
		"region: " + strings.Repeat("x", 1<<20): ": has more than 1048576 bytes",
	} {
		path := write(t, content, 0o600)
		file, err := flagfile.Load(path)
		if err == nil {
			_, flags := newFlags()
			err = file.Apply(flags, nil)
		}
		var wrong *flagfile.Error
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want …%s", content, err, want)
		}
	}
}

func TestSyntaxErrorsNameTheLine(t *testing.T) {
	_, err := flagfile.Load(write(t, "region: ams\ncount: 1\n  port: 2\n", 0o600))
	var wrong *flagfile.Error
	if !errors.As(err, &wrong) || wrong.Line == 0 {
		t.Errorf("got %v", err)
	}
}

func TestEmptyFilesSetNothing(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "---\n", "{}\n", "~\n"} {
		file, err := flagfile.Load(write(t, content, 0o644))
		if err != nil {
			t.Errorf("%q: %v", content, err)
			continue
		}
		s, flags := newFlags()
		if err := file.Apply(flags, nil); err != nil || s.region != "loc" {
			t.Errorf("%q: %+v, %v", content, s, err)
		}
	}
	if _, err := flagfile.Load("/dev/null"); err != nil {
		t.Error(err)
	}
}

func TestFilesThatOthersReachAreRefused(t *testing.T) {
	const password = "region: ams\npeer: [http://ok, 'https://root:hunter2@host:2379']\n"
	for _, tt := range []struct {
		content string
		mode    os.FileMode
		want    string
	}{
		{password, 0o600, ""},
		{password, 0o640, ""},
		{password, 0o644, ":2: peer: contains a password"},
		{"region: https://root:hunter2@host\n", 0o604, ":1: region: contains a password"},
		{"region: https://root@host\n", 0o644, ""},
		{"region: ams\n", 0o644, ""},
		{"region: ams\n", 0o646, "every user of this computer can write it"},
	} {
		_, err := flagfile.Load(write(t, tt.content, tt.mode))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q with mode %o: %v", tt.content, tt.mode, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestPlace(t *testing.T) {
	path := write(t, "count: 5\nregion: x\n", 0o600)
	file, err := flagfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	_, flags := newFlags()
	if err := file.Apply(flags, nil); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`--region "x": must be three letters`: path + `:2: region: "x": must be three letters`,
		"--region must be three letters":      path + ":2: region: must be three letters",
		"--port 0: must be above 0":           "--port 0: must be above 0", // not of the file
		"no room":                             "no room",
	} {
		if got := file.Place(errors.New(text)); got.Error() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	if file.Place(nil) != nil {
		t.Error("nil is an error")
	}
}

// TestShownFilesCanBeRead: the output of Show and Example has the values of the flags.
func TestShownFilesCanBeRead(t *testing.T) {
	s, flags := newFlags()
	if err := flags.Parse([]string{"--region", "no", "--allow-egress", "a: b,# c", "--peer", "https://u:hunter2@h", "--wait", "2h", "--on", "--ratio", "0.1"}); err != nil {
		t.Fatal(err)
	}
	want := flagfile.Values(flags)
	if text := want["peer"].([]string)[0]; strings.Contains(text, "hunter2") {
		t.Errorf("the password is shown: %s", text)
	}
	s.peers = []string{"x"}
	shown, err := flagfile.Show(flags, func(f *pflag.Flag) string { return "about " + f.Name })
	if err != nil {
		t.Fatal(err)
	}
	_, again := newFlags()
	if got := load(t, shown, again); !sameValues(got, flagfile.Values(flags)) {
		t.Errorf("%s\nreads as %v", shown, got)
	}

	_, flags = newFlags()
	example, err := flagfile.Example(flags, map[string]any{"region": "ams"})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(example); !strings.Contains(text, "\n# where it is\nregion: ams\n") || !strings.Contains(text, "\n# how many\n#count: 3\n") || strings.Contains(text, "aside") {
		t.Errorf("example:\n%s", text)
	}
	for line := range strings.Lines(string(example)) {
		if len(line) > 92 {
			t.Errorf("long line %q", line)
		}
	}
	active := regexp.MustCompile(`(?m)^#([^ ])`).ReplaceAllString(string(example), "$1")
	_, again = newFlags()
	got := load(t, []byte(active), again)
	want = flagfile.Values(flags)
	want["region"] = "ams"
	if !sameValues(got, want) {
		t.Errorf("%s\nreads as %v", active, got)
	}
}

func load(t *testing.T, content []byte, into *pflag.FlagSet) map[string]any {
	t.Helper()
	file, err := flagfile.Load(write(t, string(content), 0o600))
	if err != nil {
		t.Fatalf("%v in\n%s", err, content)
	}
	if err := file.Apply(into, nil); err != nil {
		t.Fatalf("%v in\n%s", err, content)
	}
	return flagfile.Values(into)
}

func sameValues(a, b map[string]any) bool {
	return maps.EqualFunc(a, b, reflect.DeepEqual)
}

func FuzzLoad(f *testing.F) {
	f.Add("region: ams\nallow-egress: [a, b]\n")
	f.Add("a: &x {b: *x}\n")
	f.Add("<<: {region: ams}\n")
	path := filepath.Join(f.TempDir(), "hangar.yaml")
	f.Fuzz(func(t *testing.T, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := flagfile.Load(path)
		if err != nil {
			return
		}
		_, flags := newFlags()
		_ = file.Apply(flags, nil)
	})
}
