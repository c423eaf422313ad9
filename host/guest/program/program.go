// Package program finds hangar-guest, the program that serves ssh sessions in Machines. It is
// embedded in a hangar binary that `make build` made, or lies beside it.
//
// A driver puts it into Machines. The package does not run it.
package program

import (
	"embed"

	"github.com/hangar-platform/hangar/internal/embedprog"
)

// Name is the file name of the program.
const Name = "hangar-guest"

//go:embed embedded
var embedded embed.FS

// Locate returns the path of the program, which it unpacks below dir/bin if necessary. It fails
// with embedprog.ErrNotFound where there is none.
func Locate(dir string) (string, error) { return embedprog.Locate(embedded, Name, dir) }
