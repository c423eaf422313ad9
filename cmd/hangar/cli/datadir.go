package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/internal/flagfile"
)

// DefaultConfigFile is read by `hangar up` if it exists.
const DefaultConfigFile = "/etc/hangar/hangar.yaml"

// DirFlag is the one flag of all commands that the file can set, too.
const DirFlag = "dir"

// AddDirFlag gives root the flag DirFlag.
func (t *Target) AddDirFlag(root *cobra.Command) {
	root.PersistentFlags().StringVar(&t.Dir, DirFlag, "", "data directory of the local daemon (default "+DefaultDir+")")
}

// OpenConfigFile reads the configuration file: the one that is named, or that
// HANGAR_CONFIG names, or else the default one if it exists; nil: there is none.
func (t *Target) OpenConfigFile(named string) (*flagfile.File, error) {
	path := cmp.Or(named, t.Getenv("HANGAR_CONFIG"))
	if path != "" {
		return flagfile.Load(path)
	}
	file, err := flagfile.Load(DefaultConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is no error, and sets nothing
	}
	return file, err
}

// configuredDir is the data directory that the configuration file names, or empty. A file
// that this user may not read says nothing.
func (t *Target) configuredDir() (string, error) {
	file, err := t.OpenConfigFile("")
	if errors.Is(err, fs.ErrPermission) || err == nil && file == nil {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	dir := file.Text(DirFlag)
	if dir != "" && !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s: %s: must be an absolute path", file.Path, DirFlag)
	}
	return dir, nil
}

// DataDir is the data directory that the invocation means: of the flag, the environment,
// or the configuration file.
func (t *Target) DataDir() (string, error) {
	dir := cmp.Or(t.Dir, t.Getenv("HANGAR_DIR"))
	if dir == "" {
		var err error
		if dir, err = t.configuredDir(); err != nil {
			return "", err
		}
	}
	return filepath.Abs(cmp.Or(dir, DefaultDir))
}
