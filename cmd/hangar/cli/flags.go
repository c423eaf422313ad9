package cli

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
)

// DefaultPatience is how long a command waits for a Machine before it gives up.
const DefaultPatience = 5 * time.Minute

// JSONFlag adds --json to a command.
func JSONFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "print JSON")
}

// QuietFlag adds --quiet to a command. what describes what it prints.
func QuietFlag(cmd *cobra.Command, p *bool, what string) {
	cmd.Flags().BoolVarP(p, "quiet", "q", false, "print only "+what)
}

// YesFlag adds --yes to a command.
func YesFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVarP(p, "yes", "y", false, "do not ask")
}

// CompleteFlag completes a flag with fixed words.
func CompleteFlag(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// mebibyte is the unit of guest memory.
const mebibyte = 1 << 20

// ParseMemory returns an amount of memory in MiB. A number without a unit is in MiB.
func ParseMemory(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return n, nil
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 || n%mebibyte != 0 || n/mebibyte > math.MaxInt32 {
		return 0, UsageErrorf("invalid --memory %q: must be like 512, 512mb or 2gb", text)
	}
	return int(n / mebibyte), nil
}

// ParsePairs parses KEY=VALUE arguments of a flag.
func ParsePairs(flag string, pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, UsageErrorf("invalid %s %q: must be KEY=VALUE", flag, pair)
		}
		m[k] = v
	}
	return m, nil
}
