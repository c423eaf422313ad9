package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar/bench/harness"
)

// The ways of one TCP connection that BenchmarkThroughput of host/mesh compares.
const (
	byMesh      = "mesh"
	byWireGuard = "wireguard"
	byNothing   = "plain"
)

// throughput matches a result of BenchmarkThroughput: the way, and MB/s.
var throughput = regexp.MustCompile(`(?m)^BenchmarkThroughput/(\w+)-\d+\s.*\s([\d.]+) MB/s`)

// mesh measures the rate of each way with the benchmark of host/mesh, in MB/s.
func (b *bench) mesh(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=-", "-bench=^BenchmarkThroughput$", "-benchtime=3x", "-count="+strconv.Itoa(b.o.pours), "./host/mesh")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("throughput of the mesh: %w\n%s%s", err, stdout.String(), stderr.String())
	}
	b.rates = map[string][]float64{}
	for _, m := range throughput.FindAllStringSubmatch(stdout.String(), -1) {
		rate, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		b.rates[m[1]] = append(b.rates[m[1]], rate)
	}
	for _, way := range []string{byMesh, byWireGuard, byNothing} {
		if len(b.rates[way]) != b.o.pours {
			return errors.New("the benchmark of the mesh printed no rate by " + way + ":\n" + stdout.String())
		}
	}
	return nil
}

// meshSection are the rates as a part of a document.
func (b *bench) meshSection() string {
	var s strings.Builder
	s.WriteString("\n| one TCP connection between two servers | n | MB/s | of plain WireGuard |\n|---|--:|--:|--:|\n")
	plain := harness.Median(b.rates[byWireGuard])
	for _, row := range []struct{ name, way string }{
		{"between Machines, by the mesh", byMesh},
		{"by a plain tunnel of the same WireGuard", byWireGuard},
		{"without WireGuard", byNothing},
	} {
		rate := harness.Median(b.rates[row.way])
		fmt.Fprintf(&s, "| %s | %d | %.0f | %.2f× |\n", row.name, len(b.rates[row.way]), rate, rate/plain)
	}
	return s.String()
}
