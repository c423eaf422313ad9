package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
)

// NewFileCommand makes `hangar app-config`.
func NewFileCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("app-config", "Check and show the file of an App, hangar.toml")
	cmd.AddCommand(newValidateCommand(c), newFileShowCommand(c), newSaveCommand(c), newSchemaCommand(c))
	return cmd
}

func newValidateCommand(c commands) *cobra.Command {
	var (
		file   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "validate [DIR]", Short: "Check hangar.toml", Args: cobra.MaximumNArgs(1),
		Long: "Check the file of an App as `hangar deploy` does, without a platform. Errors are printed with their lines,\n" +
			"and the exit code is 2.",
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "file of the App (default hangar.toml, or fly.toml)")
	cli.JSONFlag(cmd, &asJSON)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		path, raw, err := findFile(dir, file)
		if err != nil {
			return err
		}
		_, notes, err := appconfig.Parse(filepath.Base(path), raw)
		wrong := []appconfig.Finding{}
		if e, ok := errors.AsType[*appconfig.Error](err); ok {
			wrong = e.Findings
		}
		if asJSON {
			if err := c.PrintJSON(map[string]any{"file": path, "errors": wrong, "notes": cli.OrEmpty(notes)}); err != nil {
				return err
			}
			if len(wrong) > 0 {
				return cli.ExitStatus(cli.ExitUsage)
			}
			return nil
		}
		for _, n := range notes {
			fmt.Fprintf(c.Stderr, "Note: %s:%d: %s\n", filepath.Base(path), n.Line, n)
		}
		if err != nil {
			return cli.UsageError{Err: err}
		}
		return c.Sayf("%s is valid.", path)
	}
	return cmd
}

// definitionOf returns the file of the current release of an App.
func definitionOf(ctx context.Context, p *client.Client, app string) (map[string]any, error) {
	r, err := p.CurrentRelease(ctx, hangar.AppName(app))
	if hangar.ReasonOf(err) == hangar.ReasonReleaseNotFound || err == nil && len(r.Definition) == 0 {
		return nil, cli.WithHint(hangar.ReleaseNotFound(), "App "+app+" was not deployed from a file: hangar launch writes one")
	}
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal(r.Definition, &tree)
}

func newFileShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show APP", Short: "Show the file of the current release", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (map[string]any, error) {
		return definitionOf(ctx, p, args[0])
	}), func(tree map[string]any) error {
		text, err := asTOML(tree)
		if err == nil {
			_, err = c.Stdout.Write(text)
		}
		return err
	})
}

// asTOML converts a JSON document to TOML.
func asTOML(tree map[string]any) ([]byte, error) { return toml.Marshal(whole(tree)) }

// whole converts whole numbers to integers, which JSON does not distinguish.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
	}
	return v
}

func newSaveCommand(c commands) *cobra.Command {
	var (
		dir string
		yes bool
	)
	cmd := &cobra.Command{
		Use: "save APP", Short: "Write the file of the current release to hangar.toml", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
	}
	cmd.Flags().StringVar(&dir, "path", ".", "directory of the file")
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		tree, err := definitionOf(ctx, p, args[0])
		if err != nil {
			return err
		}
		text, err := asTOML(tree)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, appconfig.FileName)
		if _, err := os.Stat(path); err == nil {
			if err := c.ConfirmUnless(yes, "Replace %s?", path); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // a file that others may read
			return err
		}
		return c.Sayf("%s is written.", path)
	})
	return cmd
}

func newSchemaCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of hangar.toml, for editors", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema, err := appconfig.Schema()
			if err != nil {
				return err
			}
			return c.Sayf("%s", schema)
		},
	}
}
