// Package engine finds the program that runs sandboxes: hangar-sandbox, which is
// embedded in a hangar binary that `make build` made, or lies beside it.
//
// The package does not run the program; package gvisor does.
package engine

import (
	"embed"

	"github.com/hangar-platform/hangar/internal/embedprog"
)

// Name is the file name of the program.
const Name = "hangar-sandbox"

//go:embed embedded
var embedded embed.FS

// Locate returns the path of the engine, which it unpacks below dir/bin if necessary. It returns
// embedprog.ErrNotFound where there is none.
func Locate(dir string) (string, error) { return embedprog.Locate(embedded, Name, dir) }
