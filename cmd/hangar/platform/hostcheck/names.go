package hostcheck

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// localName is an example of the names that Apps have when no domain points to the server.
const localName = "app.hangar.localhost"

// resolvedWithin bounds the wait for an unresponsive name server.
const resolvedWithin = 5 * time.Second

// checkLocalNames asks the system's resolver, because Go's own does not use all of its sources.
func checkLocalNames(ctx context.Context) Check {
	ctx, cancel := context.WithTimeout(ctx, resolvedWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "ahosts", localName).Output()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return ok("whether %s resolves is unknown: %v", localName, err)
	}
	return verdictLocalNames(string(out))
}

// verdictLocalNames judges the output of getent: one line for each address, which begins the line.
func verdictLocalNames(out string) Check {
	for line := range strings.Lines(out) {
		first, _, _ := strings.Cut(line, " ")
		if a, err := netip.ParseAddr(first); err == nil && a.IsLoopback() {
			return ok("*.localhost resolves to this computer")
		}
	}
	return warn("apt-get install libnss-myhostname, or set --domain to a name that resolves to this server; curl and browsers resolve *.localhost themselves",
		"*.localhost does not resolve: other programs cannot reach Apps as %s", localName)
}
