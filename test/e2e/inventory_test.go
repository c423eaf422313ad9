package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/hangar-platform/hangar/test/daemon"
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
	// Those of the thread: the main one may have been left in a namespace of a test.
	for _, file := range []struct {
		kind, path string
		uses       int // the first of two columns that count its users; 0: none
	}{{"mount", "/proc/thread-self/mounts", 0}, {"route", "/proc/thread-self/net/route", 4}, {"route", "/proc/thread-self/net/ipv6_route", 6}} {
		b, err := os.ReadFile(file.path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if file.uses > 0 {
				fields = slices.Delete(fields, file.uses, file.uses+2)
			}
			found[file.kind+" "+strings.Join(fields, " ")] = true
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

// below reports whether a path is one of the directories apart of dir, or in it.
func below(dir string, apart []string, path string) bool {
	inside, ok := strings.CutPrefix(path, dir+"/")
	top, _, _ := strings.Cut(inside, "/")
	return ok && slices.Contains(apart, top)
}

// census lists what a daemon with a running Machine has on the server, each thing by its kind and
// a name without what differs from one thing to the next of its kind: numbers, and ids of
// Machines and volumes. Beyond the inventory it has the rules and elements of its nftables table,
// its zombies, the open files of its processes, the mounts that they see in namespaces of their
// own, and the files of its data directory except for those below the directories apart.
func census(t *testing.T, d *daemon.Daemon, apart ...string) map[string][]string {
	t.Helper()
	dir, id := d.Dir(), instance(t, d)
	found := map[string][]string{}
	count := func(thing, one string) {
		thing = typical(thing, dir, id)
		found[thing] = append(found[thing], one)
	}
	for _, thing := range left(nil, inventory(t), dir, id) {
		if !strings.HasPrefix(thing, "process ") {
			count(thing, thing)
		}
	}
	for thing := range ruleset(t, "hangar_"+id) {
		count(thing, thing)
	}
	family, err := daemon.Family(d.PID(), dir+"/", "hangar-"+id+"/")
	if err != nil {
		t.Fatal(err)
	}
	const ours = "/proc/thread-self/ns/mnt"
	own, err := os.Readlink(ours)
	if err != nil {
		t.Fatal(err)
	}
	namespaces := map[string]bool{own: true}
	for _, p := range family {
		program, one := filepath.Base(strings.Fields(p.Command)[0]), fmt.Sprintf("process %d of %d", p.PID, p.Parent)
		if p.State == 'Z' {
			count("zombie "+program, one)
			continue
		}
		if strings.HasPrefix(p.Command, "(") {
			continue // a sandbox's, without arguments: they come and go with the processes of the guest
		}
		count("process "+program, one)
		proc := filepath.Join("/proc", strconv.Itoa(p.PID))
		files, _ := filepath.Glob(filepath.Join(proc, "fd", "*")) // what ends meanwhile has nothing open
		for _, file := range files {
			// The store of metrics has as many files open as it has parts.
			if to, err := os.Readlink(file); err == nil && !below(dir, []string{"metrics"}, to) {
				count("descriptor of "+program+": "+to, file+" "+to)
			}
		}
		ns, err := os.Readlink(filepath.Join(proc, "ns", "mnt"))
		if err != nil || namespaces[ns] {
			continue
		}
		namespaces[ns] = true
		mounts, _ := os.ReadFile(filepath.Join(proc, "mounts"))
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, dir) || strings.Contains(line, id) {
				count("mount as seen by "+program+": "+strings.TrimSpace(line), one+" "+line)
			}
		}
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.IsDir() && below(dir, apart, path):
			return fs.SkipDir
		case e.IsDir() && filepath.Dir(path) == filepath.Join(dir, "layers"): // what is inside is the tenant's
			count("file "+path, path)
			return fs.SkipDir
		}
		count("file "+path, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	idOfVolume  = regexp.MustCompile(`vol_[0-9a-z]{16}`)
	idOfMachine = regexp.MustCompile(`[0-9a-f]{8,}`)
	anyNumber   = regexp.MustCompile(`[0-9]+`)
)

// typical is the name that a thing has in a census.
func typical(thing, dir, id string) string {
	thing = strings.ReplaceAll(strings.ReplaceAll(thing, dir, "DIR"), id, "INSTANCE")
	thing = idOfVolume.ReplaceAllString(thing, "VOLUME")
	thing = idOfMachine.ReplaceAllString(thing, "ID")
	return anyNumber.ReplaceAllString(thing, "N")
}

// differences lists what a later census has more of, and which are new, and what it has less of,
// except for descriptors and goroutines: a program may close a connection when it likes.
func differences(before, after map[string][]string) (list []string) {
	for thing, all := range after {
		mayEnd := thing == "goroutines" || strings.HasPrefix(thing, "descriptor ")
		if n := len(before[thing]); len(all) == n || len(all) < n && mayEnd {
			continue
		}
		more := slices.DeleteFunc(slices.Clone(all), func(one string) bool { return slices.Contains(before[thing], one) })
		list = append(list, fmt.Sprintf("%s: %d, were %d; new are %q", thing, len(all), len(before[thing]), more[:min(len(more), 5)]))
	}
	for thing, all := range before {
		if len(after[thing]) == 0 && !strings.HasPrefix(thing, "descriptor ") {
			list = append(list, fmt.Sprintf("%s: none, were %d", thing, len(all)))
		}
	}
	slices.Sort(list)
	return list
}
