//go:build !amd64

package guestinit

var program []byte
