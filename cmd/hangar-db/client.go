package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/internal/durable"
)

const defaultURL = "http://localhost:20202"

func urlFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "url", defaultURL, "URL of the node's HTTP server")
}

// call sends a request to a node, and returns the response if it is successful.
func call(ctx context.Context, method, node, path string, query url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(node, "/")+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	client := &http.Client{}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, fmt.Errorf("the node answers %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return resp, nil
}

func importCommand() *cobra.Command {
	var node, name string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import an SQLite file as a database of the node, which must be the primary",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			if name == "" {
				name = filepath.Base(args[0])
			}
			resp, err := call(cmd.Context(), http.MethodPost, node, "/import", url.Values{"name": {name}}, f)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			fmt.Fprintf(cmd.OutOrStdout(), "Imported %s as %s, at %s\n", args[0], name, resp.Header.Get("Hangar-Db-Position"))
			return nil
		},
	}
	urlFlag(cmd, &node)
	cmd.Flags().StringVar(&name, "name", "", "name of the database (default that of the file)")
	return cmd
}

func exportCommand() *cobra.Command {
	var node, name string
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Copy a database of the node to a new file",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = filepath.Base(args[0])
			}
			resp, err := call(cmd.Context(), http.MethodGet, node, "/export", url.Values{"name": {name}}, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := durable.CopyNew(args[0], resp.Body); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Exported %s to %s, at %s\n", name, args[0], resp.Header.Get("Hangar-Db-Position"))
			return nil
		},
	}
	urlFlag(cmd, &node)
	cmd.Flags().StringVar(&name, "name", "", "name of the database (default that of the file)")
	return cmd
}

func statusCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the role of the node and the positions of its databases",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := call(cmd.Context(), http.MethodGet, node, "/info", nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
			return err
		},
	}
	urlFlag(cmd, &node)
	return cmd
}
