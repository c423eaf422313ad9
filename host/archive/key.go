//go:build !testing

package archive

// keyDerivation makes a key of the password. Not scrypt, which takes 64 MiB that a random
// password does not need.
const keyDerivation = "pbkdf2-sha256-600000"
