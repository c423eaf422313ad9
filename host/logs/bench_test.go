package logs

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func BenchmarkOutput(b *testing.B) {
	s := open(b, Options{})
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	chunk := []byte(strings.Repeat("GET /index.html 200 12.3 ms some words to fill the line\n", 1000))
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		m.output(chunk)
	}
}

func BenchmarkNewest(b *testing.B) {
	s := open(b, Options{})
	fill(b, s)
	b.ReportAllocs()
	for b.Loop() {
		if page := read(b, s, hangar.LogQuery{}); len(page.Entries) != hangar.DefaultLogLimit {
			b.Fatal(len(page.Entries))
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	s := open(b, Options{})
	fill(b, s)
	page := read(b, s, hangar.LogQuery{Limit: 10})
	token := formatToken(page.Entries[0].Time.UnixNano())
	b.ReportAllocs()
	for b.Loop() {
		if page := read(b, s, hangar.LogQuery{Token: token}); len(page.Entries) != 9 {
			b.Fatal(len(page.Entries))
		}
	}
}

func fill(b *testing.B, s *Store) {
	b.Helper()
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	chunk := []byte(strings.Repeat("GET /index.html 200 12.3 ms some words to fill the line\n", 1000))
	for range 80 {
		m.output(chunk)
	}
}
