package main

import (
	"runtime/debug"
	_ "unsafe" // for go:linkname
)

const gvisorModule = "gvisor.dev/gvisor"

//go:linkname gvisorVersion gvisor.dev/gvisor/runsc/version.version
var gvisorVersion string

// setVersion names the linked module's version as runsc's own. A snapshot is only
// taken back by the version that wrote it, and a module build has none by itself.
func setVersion() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, dep := range info.Deps {
		if dep.Path == gvisorModule {
			gvisorVersion = dep.Version // also with the patch: it changes nothing of what is saved
			return
		}
	}
}
