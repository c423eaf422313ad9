package cluster

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar/test/daemon"
)

// remains are the things of this machine that a platform could leave: network namespaces, links,
// tables of nftables, control groups and directories of /run.
func remains() map[string]bool {
	found := map[string]bool{}
	list := func(kind, pattern string) {
		paths, _ := filepath.Glob(pattern) // the pattern is a constant
		for _, path := range paths {
			found[kind+" "+path] = true
		}
	}
	list("network namespace", "/run/netns/*")
	list("directory", "/run/hangar-*")
	list("link", "/sys/class/net/*")
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "hangar-") {
			found["control group "+path] = true
			return fs.SkipDir
		}
		return nil // groups come and go meanwhile
	})
	if out, err := exec.Command("nft", "list", "tables").Output(); err == nil {
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
			found["nftables "+lines.Text()] = true
		}
	}
	return found
}

// left lists the platform's remains on this machine: everything with its directory in its name,
// and everything new. Other programs make such things, too, so of the new ones only those count
// that are named after the platform or one of its servers.
func (c *cluster) left(before map[string]bool) []string {
	left := daemon.Leftovers(c.dir)
	marks := []string{c.name}
	for _, s := range c.servers {
		left = append(left, daemon.Leftovers(filepath.Join(c.dir, strconv.Itoa(s.number)))...)
		marks = append(marks, daemon.Instance(s.dir()))
	}
	for thing := range remains() {
		for _, mark := range marks {
			if !before[thing] && strings.Contains(thing, mark) {
				left = append(left, thing)
			}
		}
	}
	if _, err := os.Stat(c.dir); err == nil {
		left = append(left, "directory "+c.dir)
	}
	return left
}
