//go:build testing

package archive

// keyDerivation is one that the library has in tests: the other takes two seconds with the race detector, each
// time that an archive is opened.
const keyDerivation = "testing-only-insecure"
