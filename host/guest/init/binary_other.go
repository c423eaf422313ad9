//go:build !amd64

package guestinit

var binary []byte
