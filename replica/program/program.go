// Package program finds hangar-db, the program of nodes of replicated databases, which `make build` embeds in
// the hangar binary.
//
// Without the embedded program, a file beside the hangar binary is used. Hosts offer the program to Machines. The
// package does not run it.
package program

import (
	"embed"

	"github.com/hangar-platform/hangar/internal/embedprog"
)

// Name is the file name of the program.
const Name = "hangar-db"

//go:embed embedded
var embedded embed.FS

// Locate returns the path of the program, which it unpacks below dir/bin if necessary. The error is
// embedprog.ErrNotFound if there is no such program.
func Locate(dir string) (string, error) { return embedprog.Locate(embedded, Name, dir) }
