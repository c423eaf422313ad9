package main

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

//go:generate go run seccomp_gen.go

//go:linkname precompiledPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiledPrograms map[string]precompiledseccomp.Program

// registerSeccomp gives the sentry its seccomp programs ready-made; compiling one
// takes 20 ms of every boot. Programs of another gVisor are left out: the sentry
// then compiles its own.
func registerSeccomp() {
	if gvisorVersion != seccompVersion {
		return
	}
	filter.GetPrecompiled("") // creates the map
	for _, p := range seccompPrograms() {
		precompiledPrograms[p.Name] = p
	}
}
