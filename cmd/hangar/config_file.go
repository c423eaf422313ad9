package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/flagfile"
)

// defaultConfigFile is read by `hangar up` if it exists.
const defaultConfigFile = "/etc/hangar/hangar.yaml"

const configLong = `The daemon's configuration is a YAML file with the flags of ` + "`hangar up`" + ` as keys, without
the dashes before them:

  dir: /srv/hangar
  domain: example.com
  allow-egress: [192.168.7.0/24]
  drain: 30s

It is ` + defaultConfigFile + `, or the one that --config or HANGAR_CONFIG names. Flags of
` + "`hangar up`" + ` win over the file. A key that does not exist or a value of the wrong type is
an error. packaging/hangar.yaml lists every key with its default.`

func newConfigCommand(c *cli) *cobra.Command {
	cmd := group("config", "Check and show the daemon's configuration file")
	cmd.Long = configLong
	cmd.AddCommand(newConfigCheckCommand(c), newConfigShowCommand(c))
	return cmd
}

const configCheckLong = `Check a configuration file as ` + "`hangar up`" + ` does before it touches anything. What is
wrong is printed with its line, and the exit code is 2.`

func newConfigCheckCommand(c *cli) *cobra.Command {
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
				return c.printJSON(r.document())
			}
			if r.file == nil {
				fmt.Fprintf(c.stdout, "There is no %s: the defaults are in force, and valid.\n", defaultConfigFile)
				return nil
			}
			fmt.Fprintf(c.stdout, "%s is valid.\n", r.file.Path)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newConfigShowCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Show every setting with its value and the line that sets it",
		Long: "Show what `hangar up` without flags would be started with: every setting with its value and,\n" +
			"where the file sets it, the line. The output is a configuration file itself. Exit code 2 when the\nfile is not valid.",
		Example: "  hangar config show\n  hangar config show --json ./hangar.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := c.readConfig(args)
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(r.document())
			}
			text, err := flagfile.Show(r.flags, func(f *pflag.Flag) string {
				switch line := r.file.Line(f.Name); {
				case line > 0:
					return fmt.Sprintf("%s:%d", r.file.Path, line)
				case f.Name == dirFlag && c.getenv("HANGAR_DIR") != "":
					return "HANGAR_DIR"
				}
				return ""
			})
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(text)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// dirFlag is the one flag of all commands that the file can set, too.
const dirFlag = "dir"

// addDirFlag makes it.
func (t *target) addDirFlag(root *cobra.Command) {
	root.PersistentFlags().StringVar(&t.dir, dirFlag, "", "data directory of the local daemon (default "+defaultDir+")")
}

// fileFlags are the flags that the configuration file can set: those of `hangar up` and
// the data directory.
func fileFlags(up *cobra.Command) *pflag.FlagSet {
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags.AddFlag(up.Root().PersistentFlags().Lookup(dirFlag))
	flags.SortFlags = false
	up.LocalFlags().VisitAll(func(f *pflag.Flag) { flags.AddFlag(f) })
	flags.SortFlags = true
	return flags
}

// configReading is a configuration file with what it makes of the flags of `hangar up`.
type configReading struct {
	file  *flagfile.File // nil: there is none
	flags *pflag.FlagSet
}

// readConfig reads and validates the file that args, the environment or the default name,
// as `hangar up` without flags would.
func (c *cli) readConfig(args []string) (configReading, error) {
	named := ""
	if len(args) > 0 {
		named = args[0]
	}
	alone := newCLI(c.streams, c.getenv)
	root := &cobra.Command{Use: "hangar"}
	alone.addDirFlag(root)
	up := &cobra.Command{Use: "up"}
	root.AddCommand(up)
	if c.dir != "" {
		if err := root.PersistentFlags().Set(dirFlag, c.dir); err != nil {
			return configReading{}, err
		}
	}
	var f upFlags
	f.register(up)
	f.configPath = named
	if err := f.load(alone, up); err != nil {
		// Exit code 2 also for a file that is not there.
		return configReading{}, hangar.Errorf(hangar.CodeInvalid, "", "%v", err)
	}
	alone.dir = f.config.Dir
	return configReading{f.file, fileFlags(up)}, nil
}

// document is what is in force, as JSON.
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

// openConfigFile reads the configuration file: the one that is named, or that
// HANGAR_CONFIG names, or else the default one if it exists; nil: there is none.
func (t *target) openConfigFile(named string) (*flagfile.File, error) {
	path := cmp.Or(named, t.getenv("HANGAR_CONFIG"))
	if path != "" {
		return flagfile.Load(path)
	}
	file, err := flagfile.Load(defaultConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is no error, and sets nothing
	}
	return file, err
}

// load takes the settings of the configuration file that flags do not override, and
// validates everything that can be without touching the server.
func (f *upFlags) load(c *cli, cmd *cobra.Command) error {
	file, err := c.openConfigFile(f.configPath)
	if err != nil {
		return err
	}
	f.file = file
	if file != nil {
		byEnvironment := func(name string) bool { return name == dirFlag && c.getenv("HANGAR_DIR") != "" }
		if err := file.Apply(fileFlags(cmd), byEnvironment); err != nil {
			return err
		}
	}
	if file.Line(dirFlag) > 0 && !filepath.IsAbs(c.dir) {
		return file.Place(usageErrorf("--dir %q: must be an absolute path", c.dir))
	}
	if f.config.Dir, err = filepath.Abs(cmp.Or(c.dir, c.getenv("HANGAR_DIR"), defaultDir)); err != nil {
		return err
	}
	return file.Place(f.validate(c))
}

// validate checks what flags and the file say.
func (f *upFlags) validate(c *cli) error {
	if err := wrongUse(f.config.Validate()); err != nil {
		return err
	}
	_, err := newLogger(c, f.logLevel, f.logFormat)
	return err
}

// wrongUse marks what the daemon refuses of its config, other than a file that it cannot read.
func wrongUse(err error) error {
	if _, unreadable := errors.AsType[*fs.PathError](err); err == nil || unreadable {
		return err
	}
	return usageError{Err: err}
}

// configuredDir is the data directory that the configuration file names, or empty. A file
// that this user may not read says nothing.
func (t *target) configuredDir() (string, error) {
	file, err := t.openConfigFile("")
	if errors.Is(err, fs.ErrPermission) || err == nil && file == nil {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	dir := file.Text(dirFlag)
	if dir != "" && !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s: %s: must be an absolute path", file.Path, dirFlag)
	}
	return dir, nil
}
