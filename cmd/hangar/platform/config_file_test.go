package platform

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/flagfile"
)

var update = flag.Bool("update", false, "rewrite packaging/hangar.yaml")

// exampleHead is the beginning of packaging/hangar.yaml.
const exampleHead = `# The configuration of hangar's daemon: copy it to /etc/hangar/hangar.yaml, uncomment what
# differs from the defaults, and run ` + "`hangar config check`" + `. Flags of ` + "`hangar up`" + ` override it.
`

// examplePath is the path of the example that packages install.
var examplePath = filepath.Join("..", "..", "..", "packaging", "hangar.yaml")

// upForFile returns the flags of `up` that a configuration file can set, and where they store their values.
func upForFile() (*upFlags, *pflag.FlagSet) {
	c := &cli.Invocation{}
	root := &cobra.Command{Use: "hangar"}
	c.AddDirFlag(root)
	up := &cobra.Command{Use: "up"}
	root.AddCommand(up)
	f := &upFlags{}
	up.Flags().SortFlags = false // the example groups them by subject
	f.register(up)
	c.Dir = cli.DefaultDir
	return f, fileFlags(up)
}

// TestExampleConfig compares the example with the flags: every key is in it with its
// default and what it is for. -update rewrites it.
func TestExampleConfig(t *testing.T) {
	t.Parallel()
	_, flags := upForFile()
	example, err := flagfile.Example(flags, map[string]any{"log-format": "json"})
	if err != nil {
		t.Fatal(err)
	}
	want := exampleHead + string(example)
	if *update {
		if err := os.WriteFile(examplePath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the flags say; rewrite it with: go test ./cmd/hangar/platform -run TestExampleConfig -update", examplePath)
	}
	for name, content := range map[string]string{
		"as it is":    string(got),
		"uncommented": regexp.MustCompile(`(?m)^#([^ ])`).ReplaceAllString(string(got), "$1"),
	} {
		path := filepath.Join(t.TempDir(), "hangar.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c := commands{cli.New(cli.Streams{}, func(string) string { return "" })}
		r, err := c.readConfig([]string{path})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r.flags.VisitAll(func(f *pflag.Flag) {
			_, fresh := upForFile()
			if def := fresh.Lookup(f.Name).Value.String(); f.Value.String() != def && f.Name != "log-format" && !flagfile.Excluded(f) {
				t.Errorf("%s: %s is %s, its default %s", name, f.Name, f.Value, def)
			}
		})
	}
}

// TestEveryFlagOfUpCanBeInTheFile sets each flag to a value that its type allows.
func TestEveryFlagOfUpCanBeInTheFile(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"bool": "true", "duration": "71s", "list": "[x, y]", "number": "71", "text": "other"} {
		_, flags := upForFile()
		flags.VisitAll(func(f *pflag.Flag) {
			if flagfile.Excluded(f) || kindOf(f) != name {
				return
			}
			path := filepath.Join(t.TempDir(), "hangar.yaml")
			if err := os.WriteFile(path, []byte(f.Name+": "+text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			file, err := flagfile.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			_, fresh := upForFile()
			before := fresh.Lookup(f.Name).Value.String()
			if err := file.Apply(fresh, nil); err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
			if after := fresh.Lookup(f.Name).Value.String(); after == before {
				t.Errorf("%s is still %q", f.Name, after)
			}
		})
	}
	// The flags that the file cannot set are for one start.
	_, flags := upForFile()
	var excluded []string
	flags.VisitAll(func(f *pflag.Flag) {
		if flagfile.Excluded(f) {
			excluded = append(excluded, f.Name)
		}
	})
	if got := strings.Join(excluded, " "); got != "config detach forget-secrets join signal-ready" {
		t.Errorf("the file cannot set %s", got)
	}
}

func kindOf(f *pflag.Flag) string {
	if _, ok := f.Value.(pflag.SliceValue); ok {
		return "list"
	}
	switch t := f.Value.Type(); {
	case t == "bool" || t == "duration":
		return t
	case strings.HasPrefix(t, "int") || strings.HasPrefix(t, "uint") || strings.HasPrefix(t, "float"):
		return "number"
	}
	return "text"
}

// TestRefusedValuesAreFoundInTheFile: the error about a refused value has its line in the file, for every flag.
func TestRefusedValuesAreFoundInTheFile(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"region: nowhere":              `:1: region: "nowhere": must be three letters a-z`,
		"allow-egress: [10.1.2.3/8]":   ":1: allow-egress: 10.1.2.3/8: the network is 10.0.0.0/8",
		"drain: 2h":                    ":1: drain: 2h0m0s: must be from 0s to 1h0m0s",
		"log-level: loud":              `:1: log-level: "loud": must be debug, info, warn or error`,
		"dir: /":                       ":1: dir: must not be the root directory",
		"dir: data":                    `:1: dir: "data": must be an absolute path`,
		"acme-root: /does/not/exist":   ":1: acme-root: open /does/not/exist: no such file or directory",
		"volume-overcommit: 0":         ":1: volume-overcommit: 0: must be above 0",
		"wireguard: 51820":             `:1: wireguard: "51820": must be :PORT or off`,
		"snapshots: s3://b?endpont=h":  `parameter "endpont" is unknown`,
		"rate-limits: -1":              `:1: rate-limits: "-1": must be off, public`,
		"ipv4-pool: 10.0.0.1/8":        ":1: ipv4-pool: ",
		"etcd: [http://ok:1, 'ok:1']":  ":1: etcd: ",
		"domain: example.com\nregion:": ":2: region: has no value",
	} {
		path := filepath.Join(t.TempDir(), "hangar.yaml")
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := commands{cli.New(cli.Streams{}, func(string) string { return "" })}
		_, err := c.readConfig([]string{path})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path) || hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s: got %v", content, err)
		}
	}
}
