package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/replica"
)

func runCommand() *cobra.Command {
	var node string
	var ifPrimary, ifCandidate bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a program beside a node, if the node has the role for it",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := call(cmd.Context(), http.MethodGet, node, "/info", nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var info replica.Info
			if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
				return err
			}
			if ifPrimary && !info.IsPrimary || ifCandidate && !info.Candidate {
				fmt.Fprintln(cmd.ErrOrStderr(), "hangar-db: not run: the node has another role")
				return nil
			}
			return runProgram(cmd.Context(), args)
		},
	}
	urlFlag(cmd, &node)
	cmd.Flags().BoolVar(&ifPrimary, "if-primary", false, "only if the node is the primary")
	cmd.Flags().BoolVar(&ifCandidate, "if-candidate", false, "only if the node may become the primary")
	return cmd
}
