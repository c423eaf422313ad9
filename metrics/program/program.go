// Package program finds the program that stores metrics: hangar-metrics, which is embedded in a
// hangar binary that `make build` made, or lies beside it.
//
// The package does not run the program; package store does.
package program

import (
	"embed"

	"github.com/hangar-platform/hangar/internal/embedprog"
)

// Name is the file name of the program.
const Name = "hangar-metrics"

//go:embed embedded
var embedded embed.FS

// Locate returns the path of the program, which it unpacks below dir/bin if necessary. It returns
// embedprog.ErrNotFound where there is none.
func Locate(dir string) (string, error) { return embedprog.Locate(embedded, Name, dir) }
