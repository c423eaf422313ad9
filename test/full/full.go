// Package full fills the disk of a real daemon as a tenant would, and checks that no other tenant
// notices.
//
// A run is determined by its seed; a failure prints it. FULL_SEED and FULL_TIME choose another
// run than the default.
package full
