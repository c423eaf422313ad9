package machine

import (
	"context"
	"fmt"
	"io/fs"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/machine/files"
)

const sftpLong = `Copy files between this computer and a started Machine, as root. It goes through the API, as
hangar ssh console does: no sshd in the Machine, no key and no WireGuard peer is needed, and the
image needs no other program.

Paths in the Machine are relative to the home directory unless they begin with /. Existing files
are not overwritten without --force; a failed copy leaves no partial file.

Programs that speak SFTP, such as sftp, scp and editors, can connect by SSH instead.`

func newSFTPCommand(c commands) *cobra.Command {
	cmd := cli.Group("sftp", "Copy files from and to a Machine")
	cmd.Long = sftpLong
	cmd.AddCommand(newSFTPGetCommand(c), newSFTPPutCommand(c), newSFTPListCommand(c), newSFTPFindCommand(c), newSFTPShellCommand(c))
	return cmd
}

// openFiles opens the files of the Machine that the user chose. The session outlives ctx, so that partial copies can
// be removed.
func (c commands) openFiles(ctx context.Context, name string, which cli.MachineChoice) (*files.Session, error) {
	p, err := c.Connect()
	if err != nil {
		return nil, err
	}
	m, err := c.console(ctx, p, name, which)
	if err != nil {
		return nil, err
	}
	return files.Open(context.WithoutCancel(ctx), p, m.Ref())
}

// inFiles returns the RunE of a command that works on the files of the Machine that its first argument names.
func (c commands) inFiles(which *cli.MachineChoice, work func(ctx context.Context, s *files.Session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := c.openFiles(cmd.Context(), args[0], *which)
		if err != nil {
			return err
		}
		ctx, restore := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer restore()
		if err := work(ctx, s, args[1:]); err != nil {
			_ = s.Close() // the first error is reported
			return err
		}
		return s.Close()
	}
}

// copying are the flags of a command that copies.
type copying struct {
	recursive, force bool
}

func (f *copying) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "copy directories and their content")
	cmd.Flags().BoolVarP(&f.force, "force", "f", false, "overwrite existing files")
}

// options returns the flags as options of package files, and a function that ends the progress display.
func (c commands) options(f copying) (o files.Options, shown func()) {
	bar := c.Progress()
	return files.Options{
		Recursive: f.recursive, Force: f.force, Progress: bar.Update,
		Skip: func(name string) {
			bar.Close()
			fmt.Fprintf(c.Stderr, "Skipped %s: it is neither a file nor a directory\n", name)
		},
	}, bar.Close
}

func (c commands) get(ctx context.Context, s *files.Session, f copying, remote, local string) error {
	o, shown := c.options(f)
	defer shown()
	return s.Get(ctx, remote, local, o)
}

func (c commands) put(ctx context.Context, s *files.Session, f copying, mode fs.FileMode, local, remote string) error {
	o, shown := c.options(f)
	defer shown()
	o.Mode = mode
	return s.Put(ctx, local, remote, o)
}

func newSFTPGetCommand(c commands) *cobra.Command {
	var (
		which cli.MachineChoice
		f     copying
	)
	cmd := &cobra.Command{
		Use: "get APP|MACHINE REMOTE [LOCAL]", Short: "Copy a file of a Machine to this computer", Args: cobra.RangeArgs(2, 3),
		Long:    "Copy a file of a Machine to LOCAL on this computer, or into LOCAL if it is a directory (default the current directory).",
		Example: "  hangar ssh sftp get hello /var/log/app.log\n  hangar ssh sftp get -R hello /data backup",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 2 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.CompleteApp(cmd, args, prefix)
		},
		RunE: c.inFiles(&which, func(ctx context.Context, s *files.Session, args []string) error {
			local := "."
			if len(args) > 1 {
				local = args[1]
			}
			return c.get(ctx, s, f, args[0], local)
		}),
	}
	which.Add(c.Invocation, cmd)
	f.add(cmd)
	return cmd
}

// parseMode reads the permissions of a file.
func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || fs.FileMode(n)&^fs.ModePerm != 0 {
		return 0, cli.UsageErrorf("%.40q is not the mode of a file, such as 644", text)
	}
	return fs.FileMode(n), nil
}

func newSFTPPutCommand(c commands) *cobra.Command {
	var (
		which cli.MachineChoice
		f     copying
		mode  string
	)
	cmd := &cobra.Command{
		Use: "put APP|MACHINE LOCAL [REMOTE]", Short: "Copy a file of this computer to a Machine", Args: cobra.RangeArgs(2, 3),
		Long: "Copy a file of this computer to REMOTE in a Machine, or into REMOTE if it is a directory (default the home\n" +
			"directory). A file outside of volumes is lost when the Machine gets a fresh root filesystem.",
		Example: "  hangar ssh sftp put hello dump.sql /data/\n  hangar ssh sftp put -R hello site /var/www/html",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.CompleteApp(cmd, args, prefix)
		},
	}
	which.Add(c.Invocation, cmd)
	f.add(cmd)
	cmd.Flags().StringVarP(&mode, "mode", "m", "", "permissions of the files, such as 600 (default their local ones)")
	run := func(perm fs.FileMode) func(*cobra.Command, []string) error {
		return c.inFiles(&which, func(ctx context.Context, s *files.Session, args []string) error {
			remote := "."
			if len(args) > 1 {
				remote = args[1]
			}
			return c.put(ctx, s, f, perm, args[0], remote)
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("mode") {
			return run(0)(cmd, args)
		}
		perm, err := parseMode(mode)
		if err != nil {
			return err
		}
		return run(perm)(cmd, args)
	}
	return cmd
}

// remoteFile is a file of a Machine as `sftp ls` shows it.
type remoteFile struct {
	Name     string    `json:"name"`
	Mode     string    `json:"mode"` // as ls(1) prints it
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Size     int64     `json:"size"` // bytes
	Modified time.Time `json:"modified"`
}

func asRemoteFile(info fs.FileInfo) remoteFile {
	f := remoteFile{Name: info.Name(), Mode: info.Mode().String(), Size: info.Size(), Modified: info.ModTime()}
	if stat, ok := info.Sys().(*sftp.FileStat); ok {
		f.UID, f.GID = stat.UID, stat.GID
	}
	return f
}

// row returns the columns of the file in a table.
func (f *remoteFile) row() []string {
	return []string{f.Mode, fmt.Sprintf("%d:%d", f.UID, f.GID), strconv.FormatInt(f.Size, 10), f.Modified.UTC().Format(time.RFC3339), files.Printable(f.Name)}
}

// list prints the files in a directory.
func (c commands) list(ctx context.Context, s *files.Session, name string, asJSON bool) error {
	list, err := s.List(ctx, name)
	if err != nil {
		return err
	}
	found := []remoteFile{}
	rows := [][]string{{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}}
	for _, info := range list {
		f := asRemoteFile(info)
		found, rows = append(found, f), append(rows, f.row())
	}
	if asJSON {
		return c.PrintJSON(found)
	}
	return c.PrintTable(rows)
}

// pathOr returns the first argument, or other if there is none.
func pathOr(args []string, other string) string {
	if len(args) > 0 {
		return args[0]
	}
	return other
}

func newSFTPListCommand(c commands) *cobra.Command {
	var (
		which  cli.MachineChoice
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "ls APP|MACHINE [PATH]", Aliases: []string{"list"}, Short: "List the files of a directory of a Machine", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteApp,
		Example: "  hangar ssh sftp ls hello /data",
		RunE: c.inFiles(&which, func(ctx context.Context, s *files.Session, args []string) error {
			return c.list(ctx, s, pathOr(args, "."), asJSON)
		}),
	}
	which.Add(c.Invocation, cmd)
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// find prints the paths of everything below a path.
func (c commands) find(ctx context.Context, s *files.Session, root string) error {
	unread := 0
	err := s.Find(ctx, root, func(name string, _ fs.FileInfo) error {
		return c.Sayf("%s", files.Printable(name))
	}, func(err error) {
		unread++
		fmt.Fprintf(c.Stderr, "Skipped: %s\n", err)
	})
	if err == nil && unread > 0 {
		return cli.ExitStatus(cli.ExitFailed)
	}
	return err
}

func newSFTPFindCommand(c commands) *cobra.Command {
	var which cli.MachineChoice
	cmd := &cobra.Command{
		Use: "find APP|MACHINE [PATH]", Short: "Print the paths of all files below a path", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteApp,
		Example: "  hangar ssh sftp find hello /data",
		RunE: c.inFiles(&which, func(ctx context.Context, s *files.Session, args []string) error {
			return c.find(ctx, s, pathOr(args, "."))
		}),
	}
	which.Add(c.Invocation, cmd)
	return cmd
}
