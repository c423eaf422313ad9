package random

import (
	"bytes"
	"strings"
	"testing"
)

func TestID(t *testing.T) {
	known := map[string]bool{}
	for range 1000 {
		id := ID()
		if len(id) != 16 || strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
			t.Fatalf("%q is no id", id)
		}
		if known[id] {
			t.Fatalf("%q twice", id)
		}
		known[id] = true
	}
}

func TestBytes(t *testing.T) {
	if one, other := Bytes(32), Bytes(32); len(one) != 32 || len(other) != 32 || bytes.Equal(one, other) {
		t.Errorf("%x and %x", one, other)
	}
}

func TestBelow(t *testing.T) {
	seen := map[int]bool{}
	for range 1000 {
		n := Below(3)
		if n < 0 || n >= 3 {
			t.Fatalf("%d is not below 3", n)
		}
		seen[n] = true
	}
	if len(seen) != 3 {
		t.Errorf("only %v of 3 numbers", seen)
	}
}
