// This file lets the package declare variables by go:linkname.
