// Package e2e proves on real Machines that real software runs on the platform, and
// that neither the software nor its clients lose anything when Machines are suspended
// and the daemon is killed.
//
// `make e2e` runs it, as root; E2E_SHORT=1 bounds it to what every change must pass, and E2E_CYCLES
// is the number of repetitions in tests against losses and leaks. The images are made of Debian
// packages while it runs and kept in the user's cache directory. Its results for each program are
// in docs/compatibility.md, which -update writes.
package e2e
