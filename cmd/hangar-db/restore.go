package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/replica/backup"
)

// restoring has the flags of the command. Exactly one of file, as and list is set.
type restoring struct {
	config, from string // configuration file, or URL of the backup
	db, at       string // database of the backup, and the time to restore
	file         string // to write
	as, node     string // database to replace, and the URL of its node
	list         bool
}

func restoreCommand() *cobra.Command {
	var r restoring
	cmd := &cobra.Command{
		Use:   "restore (--config FILE | --from URL) (--list | [--db NAME] [--at TIME] (-o FILE | --import NAME))",
		Short: "Write the state of a database at a time from a backup to a new file",
		Long: "Write the state of a database at a time from a backup to a new file.\n\n" +
			"The file appears only when it is complete, and its checksum is compared with the one that the database had at\n" +
			"that time. With --import, the state is imported into a running node instead. The environment variables\n" +
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have the credentials of a bucket.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.config, "config", "", "configuration file that names the backup")
	flags.StringVar(&r.from, "from", "", "URL of the backup: file:///directory or s3://bucket/prefix")
	flags.StringVar(&r.db, "db", "", "name of the database (default: the only one)")
	flags.StringVar(&r.at, "at", "", "time, such as 2026-03-01T12:00:00Z, or a duration before now, such as 90m (default: the newest state)")
	flags.StringVarP(&r.file, "output", "o", "", "file to write")
	flags.BoolVar(&r.list, "list", false, "list the databases of the backup")
	cmd.MarkFlagsMutuallyExclusive("config", "from")
	cmd.MarkFlagsOneRequired("config", "from")
	flags.StringVar(&r.as, "import", "", "import the state as this database of the node, which must be the primary")
	urlFlag(cmd, &r.node)
	cmd.MarkFlagsMutuallyExclusive("list", "output", "import")
	cmd.MarkFlagsOneRequired("list", "output", "import")
	return cmd
}

// credentials returns the S3 credentials in the environment.
func credentials() backup.Credentials {
	return backup.Credentials{
		AccessKey: os.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		SessionToken: os.Getenv("AWS_SESSION_TOKEN"),
	}
}

func (r *restoring) run(ctx context.Context, out io.Writer) error {
	from := r.from
	if r.config != "" {
		c, err := readConfig(r.config)
		if err != nil {
			return err
		}
		if from = c.Backup.URL; from == "" {
			return fmt.Errorf("%s has no backup.url", r.config)
		}
	}
	when, err := parseTime(r.at, time.Now())
	if err != nil {
		return err
	}
	store, err := backup.OpenStore(from, credentials())
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	databases, err := backup.Databases(ctx, store)
	if err != nil {
		return err
	}
	if r.list {
		return list(out, databases)
	}
	if r.db == "" {
		if r.db, err = only(databases); err != nil {
			return err
		}
	}
	if r.as != "" {
		dir, err := os.MkdirTemp("", "hangar-db-restore-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		r.file = filepath.Join(dir, "restored.db")
	}
	done, err := backup.Restore(ctx, store, r.db, when, r.file)
	if err != nil {
		return err
	}
	if r.as != "" {
		return r.importFile(ctx, out, done)
	}
	fmt.Fprintf(out, "Restored %s to %s, at %s of %s\n", r.db, r.file, done.Pos, done.Time.Format(time.RFC3339Nano))
	return nil
}

// importFile imports the restored file into the node.
func (r *restoring) importFile(ctx context.Context, out io.Writer, done backup.Restored) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	resp, err := call(ctx, http.MethodPost, r.node, "/import", url.Values{"name": {r.as}}, f)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprintf(out, "Restored %s, at %s of %s, as %s, which is now at %s\n", r.db, done.Pos, done.Time.Format(time.RFC3339Nano),
		r.as, resp.Header.Get("Hangar-Db-Position"))
	return nil
}

// parseTime parses a time, or how long ago it was. It returns the zero time for an empty text.
func parseTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("--at %q is not a time: write 2026-03-01T12:00:00Z, or 90m for 90 minutes ago", text)
	}
	return t, nil
}

// only returns the name of the only database of a backup.
func only(databases []backup.Database) (string, error) {
	var names []string
	for _, d := range databases {
		names = append(names, d.Name)
	}
	switch len(names) {
	case 0:
		return "", errors.New("the backup has no databases")
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("the backup has several databases: %s: choose one with --db", strings.Join(names, ", "))
}

func list(out io.Writer, databases []backup.Database) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tFROM\tTO\tOBJECTS\tSIZE")
	for _, d := range databases {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", d.Name, d.From.Format(time.RFC3339), d.To.Format(time.RFC3339), d.Objects, units.BytesSize(float64(d.Size)))
	}
	return w.Flush()
}
