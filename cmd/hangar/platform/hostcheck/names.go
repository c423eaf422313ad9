package hostcheck

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// localName is one of the names that Apps have where no domain leads to the server.
const localName = "app.hangar.localhost"

// resolvedWithin bounds the wait for a name server that does not answer.
const resolvedWithin = 5 * time.Second

// checkLocalNames asks the resolver that programs use. This program's own knows only a part of that.
func checkLocalNames(ctx context.Context) Check {
	ctx, cancel := context.WithTimeout(ctx, resolvedWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "ahosts", localName).Output()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return ok("whether %s resolves is unknown: %v", localName, err)
	}
	return verdictLocalNames(string(out))
}

// verdictLocalNames judges what getent prints: a line for each address, which it begins with.
func verdictLocalNames(out string) Check {
	for line := range strings.Lines(out) {
		first, _, _ := strings.Cut(line, " ")
		if a, err := netip.ParseAddr(first); err == nil && a.IsLoopback() {
			return ok("*.localhost leads to this computer")
		}
	}
	return warn("apt-get install libnss-myhostname, or set --domain to a name that leads here; curl and browsers know *.localhost by themselves",
		"*.localhost does not resolve: other programs do not find Apps as %s", localName)
}
