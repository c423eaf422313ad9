package platform

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/flagfile"
)

const configLong = `The daemon's configuration is a YAML file with the flags of ` + "`hangar up`" + ` as keys, without
the dashes before them:

  dir: /srv/hangar
  domain: example.com
  allow-egress: [192.168.7.0/24]
  drain: 30s

It is ` + cli.DefaultConfigFile + `, or the one that --config or HANGAR_CONFIG names. Flags of
` + "`hangar up`" + ` override the file. An unknown key or a value of the wrong type is
an error. packaging/hangar.yaml lists every key with its default, but log-format,
which is text unless it is set.`

// NewConfigCommand returns `hangar config`.
func NewConfigCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("config", "Check and show the daemon's configuration file")
	cmd.Long = configLong
	cmd.AddCommand(newConfigCheckCommand(c), newConfigShowCommand(c))
	return cmd
}

const configCheckLong = `Check a configuration file as ` + "`hangar up`" + ` does before it changes anything. An error
is printed with its line, and the exit code is 2.`

func newConfigCheckCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "check [FILE]",
		Short:   "Check a configuration file",
		Long:    configCheckLong,
		Example: "  hangar config check && systemctl restart hangar\n  hangar config check --json ./hangar.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := c.readConfig(args)
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(r.document())
			}
			if r.file == nil {
				fmt.Fprintf(c.Stdout, "%s does not exist; the defaults apply.\n", cli.DefaultConfigFile)
				return nil
			}
			fmt.Fprintf(c.Stdout, "%s is valid.\n", r.file.Path)
			return nil
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newConfigShowCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Show every setting with its value and the line that sets it",
		Long: "Show the settings of `hangar up` without flags: each one with its value and,\n" +
			"if the file sets it, the line. The output is itself a configuration file. The exit code is 2 if the\nfile is not valid.",
		Example: "  hangar config show\n  hangar config show --json ./hangar.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := c.readConfig(args)
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(r.document())
			}
			text, err := flagfile.Show(r.flags, func(f *pflag.Flag) string {
				switch line := r.file.Line(f.Name); {
				case line > 0:
					return fmt.Sprintf("%s:%d", r.file.Path, line)
				case f.Name == cli.DirFlag && c.Getenv("HANGAR_DIR") != "":
					return "HANGAR_DIR"
				}
				return ""
			})
			if err != nil {
				return err
			}
			_, err = c.Stdout.Write(text)
			return err
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// fileFlags are the flags that the configuration file can set: those of `hangar up` and
// the data directory.
func fileFlags(up *cobra.Command) *pflag.FlagSet {
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags.AddFlag(up.Root().PersistentFlags().Lookup(cli.DirFlag))
	flags.SortFlags = false
	up.LocalFlags().VisitAll(func(f *pflag.Flag) { flags.AddFlag(f) })
	flags.SortFlags = true
	return flags
}

// configReading is a configuration file and the flags of `hangar up` with its values.
type configReading struct {
	file  *flagfile.File // nil: there is none
	flags *pflag.FlagSet
}

// readConfig reads and validates the file that args, the environment or the default names, as `hangar up` without
// flags does.
func (c commands) readConfig(args []string) (configReading, error) {
	named := ""
	if len(args) > 0 {
		named = args[0]
	}
	alone := cli.New(c.Streams, c.Getenv)
	root := &cobra.Command{Use: "hangar"}
	alone.AddDirFlag(root)
	up := &cobra.Command{Use: "up"}
	root.AddCommand(up)
	if c.Dir != "" {
		if err := root.PersistentFlags().Set(cli.DirFlag, c.Dir); err != nil {
			return configReading{}, err
		}
	}
	var f upFlags
	f.register(up)
	f.configPath = named
	if err := f.load(alone, up); err != nil {
		// A missing file is a usage error, too.
		return configReading{}, hangar.Errorf(hangar.CodeInvalid, "", "%v", err)
	}
	alone.Dir = f.config.Dir
	return configReading{f.file, fileFlags(up)}, nil
}

// document returns the effective settings as JSON.
func (r configReading) document() any {
	doc := struct {
		File   string         `json:"file,omitempty"`
		Values map[string]any `json:"values"`
	}{Values: flagfile.Values(r.flags)}
	if r.file != nil {
		doc.File = r.file.Path
	}
	return doc
}

// load applies the settings of the configuration file that no flag overrides. It validates as much as possible without
// changing the server.
func (f *upFlags) load(c *cli.Invocation, cmd *cobra.Command) error {
	file, err := c.OpenConfigFile(f.configPath)
	if err != nil {
		return err
	}
	f.file = file
	if file != nil {
		byEnvironment := func(name string) bool { return name == cli.DirFlag && c.Getenv("HANGAR_DIR") != "" }
		if err := file.Apply(fileFlags(cmd), byEnvironment); err != nil {
			return err
		}
	}
	if file.Line(cli.DirFlag) > 0 && !filepath.IsAbs(c.Dir) {
		return file.Place(cli.UsageErrorf("--dir %q: must be an absolute path", c.Dir))
	}
	if f.config.Dir, err = filepath.Abs(cmp.Or(c.Dir, c.Getenv("HANGAR_DIR"), cli.DefaultDir)); err != nil {
		return err
	}
	return file.Place(f.validate(c))
}

// validate checks the values from the flags and the file.
func (f *upFlags) validate(c *cli.Invocation) error {
	if err := wrongUse(f.config.Validate()); err != nil {
		return err
	}
	_, err := newLogger(c, f.logLevel, f.logFormat)
	return err
}

// wrongUse makes an error about the daemon's config a usage error, unless a file could not be read.
func wrongUse(err error) error {
	if _, unreadable := errors.AsType[*fs.PathError](err); err == nil || unreadable {
		return err
	}
	return cli.UsageError{Err: err}
}
