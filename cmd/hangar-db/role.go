package main

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func handoffCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "handoff [NODE]",
		Short: "Make another node the primary, without loss; NODE is a hostname or ID (default any candidate)",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if len(args) > 0 {
				query.Set("nodeID", args[0])
			}
			return changeRole(cmd, node, "/handoff", query)
		},
	}
	urlFlag(cmd, &node)
	return cmd
}

func promoteCommand() *cobra.Command {
	var node string
	var force bool
	cmd := &cobra.Command{
		Use:   "promote",
		Short: "Make the node the primary, by a hand-off from the current one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if force {
				query.Set("force", "true")
			}
			return changeRole(cmd, node, "/promote", query)
		},
	}
	urlFlag(cmd, &node)
	cmd.Flags().BoolVar(&force, "force", false,
		"if there is no primary, take over even if acknowledged transactions that only unreachable nodes have are lost")
	return cmd
}

// changeRole requests a change of roles, and prints which node is the primary after it.
func changeRole(cmd *cobra.Command, node, path string, query url.Values) error {
	resp, err := call(cmd.Context(), http.MethodPost, node, path, query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	name, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil {
		return err
	}
	cmd.Printf("%s is the primary\n", strings.TrimSpace(string(name)))
	return nil
}
