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

// DirFlag is the only global flag that the configuration file can set, too.
const DirFlag = "dir"

// AddDirFlag adds the flag DirFlag to root.
func (t *Target) AddDirFlag(root *cobra.Command) {
	root.PersistentFlags().StringVar(&t.Dir, DirFlag, "", "data directory of the local daemon (default "+DefaultDir+")")
}

// OpenConfigFile reads the configuration file: the named one, or that of HANGAR_CONFIG, or else the default
// one. It returns nil if the default one does not exist.
func (t *Target) OpenConfigFile(named string) (*flagfile.File, error) {
	path := cmp.Or(named, t.Getenv("HANGAR_CONFIG"))
	if path != "" {
		return flagfile.Load(path)
	}
	file, err := flagfile.Load(DefaultConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // the file is optional
	}
	return file, err
}

// configuredDir returns the data directory of the configuration file, or "". It ignores a file that this
// user may not read.
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

// DataDir returns the data directory: from the flag, the environment, the configuration file, or else
// DefaultDir.
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
