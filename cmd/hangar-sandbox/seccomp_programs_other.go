//go:build !amd64

package main

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// seccompVersion matches no gVisor: the sentry compiles its own program.
const seccompVersion = "none"

func seccompPrograms() []precompiledseccomp.Program { return nil }
