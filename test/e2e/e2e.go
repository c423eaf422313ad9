// Package e2e proves on real Machines that real software runs on the platform, and
// that neither the software nor its clients lose anything when Machines are suspended
// and the daemon is killed.
//
// `make e2e` runs it, as root; E2E_SHORT=1 bounds it to what every change must pass, and
// E2E_CYCLES says how often what must lose nothing, or leave nothing behind, is repeated.
// The images are made of Debian packages while it runs and kept in the user's cache
// directory. What it finds about each program is in docs/compatibility.md, which
// -update writes.
package e2e
