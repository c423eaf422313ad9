// Package random makes unpredictable bytes, numbers and ids.
package random

import (
	"crypto/rand"
	"math/big"
)

// ID is an opaque id of 16 characters of a-z and 0-9.
func ID() string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyz"
	b := make([]byte, 16)
	for i := range b {
		b[i] = letters[Below(len(letters))]
	}
	return string(b)
}

// Bytes returns n random bytes, fit for keys and secrets.
func Bytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand.Read aborts the program instead
	return b
}

// Below returns a number from 0 to n-1. n must be positive.
func Below(n int) int {
	v, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
	if err != nil {
		panic(err) // never happens: crypto/rand.Reader aborts the program instead
	}
	return int(v.Int64())
}
