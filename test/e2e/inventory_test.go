package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
)

// inventory lists what programs may leave on a server, each thing by its kind and a
// name: network devices, addresses and namespaces, nftables tables, routes, mounts, cgroups, loop
// devices, run directories, and processes.
func inventory(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		found["link "+l.Name] = true
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		found["table "+table.Name] = true
	}
	for _, file := range []struct{ kind, path string }{{"mount", "/proc/self/mounts"}, {"route", "/proc/net/route"}, {"route", "/proc/net/ipv6_route"}} {
		b, err := os.ReadFile(file.path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			found[file.kind+" "+strings.Join(strings.Fields(line), " ")] = true
		}
	}
	for kind, pattern := range map[string]string{
		"namespace": "/run/netns/*", "run": "/run/hangar*", "loop": "/sys/block/loop*/loop/backing_file",
	} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range matches {
			name := path
			if kind == "loop" {
				b, _ := os.ReadFile(path) // gone again: nothing to list
				name = strings.TrimSpace(string(b))
			}
			found[kind+" "+name] = true
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		found["address "+a.String()] = true
	}
	namespaces, _ := filepath.Glob("/run/hangar-*/netns/*")
	for _, path := range namespaces {
		found["namespace "+path] = true
	}
	// Cgroups and processes come and go: what vanishes while it is looked at is not
	// there.
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			found["cgroup "+path] = true
		}
		return nil
	})
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range processes {
		command, err := os.ReadFile(filepath.Join(path, "cmdline"))
		stat, err2 := os.ReadFile(filepath.Join(path, "stat"))
		if err != nil || err2 != nil || len(command) == 0 {
			continue
		}
		// The pid, the time it was started, by which it differs from a later one with
		// the same pid, and its command line.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		found["process "+filepath.Base(path)+" "+fields[19]+" "+strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))] = true
	}
	return found
}

// left returns what is in after, was not in before, and belongs to the daemon with a
// data directory and an instance id: others may run on the same server.
func left(before, after map[string]bool, dir, id string) []string {
	var things []string
	for thing := range after {
		name := thing
		if strings.HasPrefix(thing, "route ") {
			name = thing[strings.LastIndexByte(thing, ' '):] // its device; addresses are hexadecimal, as ids are
		}
		if !before[thing] && (strings.Contains(name, dir) || strings.Contains(name, id)) {
			things = append(things, thing)
		}
	}
	slices.Sort(things)
	return things
}

// ruleset lists the rules of an nftables table and what is in its sets.
func ruleset(t *testing.T, name string) map[string]bool {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	found := map[string]bool{}
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range chains {
		if chain.Table.Name != name {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			found[fmt.Sprintf("rule %d of chain %s: %d expressions", r.Handle, chain.Name, len(r.Exprs))] = true
		}
	}
	sets, err := c.GetSets(table)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range elements {
			found[fmt.Sprintf("element %x of set %s, end %t", e.Key, set.Name, e.IntervalEnd)] = true
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no table %s", name)
	}
	return found
}
