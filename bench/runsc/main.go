//go:build runsc

// Command runsc is gVisor's own program, unchanged, of the version that hangar's
// engine is made of: what Machines are measured against.
//
// Only its build tag makes it: nothing but the benchmark needs it.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
