//go:build runsc

// Command runsc is gVisor's own program, unchanged, of the version that hangar's engine is made of.
// Machines are measured against it.
//
// It has a build tag, because only the benchmark needs it.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
