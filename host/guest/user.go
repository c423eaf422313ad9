package guest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
	shell    string // as /etc/passwd has it
}

// DefaultShell is that of users without one, as login(1) has it.
const DefaultShell = "/bin/sh"

// User finds a user of an image by name. Every image has root. It answers CodeInvalid.
func User(layers []string, name string) (hangar.SSHUser, error) {
	found, err := lookupUser(layers, name)
	if err != nil && name == hangar.DefaultSSHUser && hangar.CodeOf(err) == hangar.CodeInvalid {
		found, err = account{home: "/root"}, nil
	}
	if err != nil {
		return hangar.SSHUser{}, err
	}
	return hangar.SSHUser{
		Name: name, UID: found.uid, GID: found.gid, Groups: found.groups, Home: found.home, Shell: cmp.Or(found.shell, DefaultShell),
	}, nil
}

// lookupUser reads "user", "uid", "user:group" or "uid:gid" with the image's own
// files. A uid that the image does not list is its own gid, with / as home; a name
// that it does not list is an error.
func lookupUser(layers []string, spec string) (account, error) {
	userPart, groupPart, _ := strings.Cut(spec, ":")
	if userPart == "" {
		userPart = "0"
	}
	passwd, err := readColonFile(layers, "etc/passwd")
	if err != nil {
		return account{}, err
	}
	group, err := readColonFile(layers, "etc/group")
	if err != nil {
		return account{}, err
	}

	var acc account
	var name string
	if row := findRow(passwd, userPart, 2, 6); row != nil {
		name = row[0]
		uid, uidErr := parseID(row[2])
		gid, gidErr := parseID(row[3])
		if uidErr != nil || gidErr != nil {
			return account{}, badUser(spec, "its line in /etc/passwd has no numbers")
		}
		acc = account{uid: uid, gid: gid, home: row[5]}
		if len(row) > 6 {
			acc.shell = row[6]
		}
	} else {
		uid, err := parseID(userPart)
		if err != nil {
			return account{}, badUser(spec, "no such user in the image's /etc/passwd")
		}
		acc = account{uid: uid, gid: uid}
	}
	if acc.home == "" {
		acc.home = "/"
		if acc.uid == 0 {
			acc.home = "/root"
		}
	}

	if groupPart != "" {
		if row := findRow(group, groupPart, 2, 3); row != nil {
			gid, err := parseID(row[2])
			if err != nil {
				return account{}, badUser(spec, "its group's line in /etc/group has no number")
			}
			acc.gid = gid
		} else if gid, err := parseID(groupPart); err == nil {
			acc.gid = gid
		} else {
			return account{}, badUser(spec, "no such group in the image's /etc/group")
		}
		return acc, nil
	}
	for _, row := range group {
		if len(row) < 4 || name == "" || !slices.Contains(strings.Split(row[3], ","), name) {
			continue
		}
		if gid, err := parseID(row[2]); err == nil && gid != acc.gid {
			acc.groups = append(acc.groups, gid)
		}
	}
	return acc, nil
}

func badUser(spec, why string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "cannot run as user %q: %s", spec, why)
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// findRow returns the row of at least width columns whose name or, in column
// idColumn, whose number is key.
func findRow(rows [][]string, key string, idColumn, width int) []string {
	for _, row := range rows {
		if len(row) >= width && (row[0] == key || row[idColumn] == key) {
			return row
		}
	}
	return nil
}

// maxAccountFile bounds what is read of an image's account files, in bytes.
const maxAccountFile = 1 << 20

// readColonFile reads a file of colon-separated lines as the Machine will see it. A
// file that is absent has no rows.
func readColonFile(layers []string, path string) ([][]string, error) {
	content, err := readFile(layers, path, maxAccountFile)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' {
			rows = append(rows, strings.Split(line, ":"))
		}
	}
	return rows, lines.Err()
}

// readFile reads a file of an image as the Machine will see it. One that is absent is
// empty. A file of more than limit bytes is an error.
func readFile(layers []string, path string, limit int64) ([]byte, error) {
	f, err := openInLayers(layers, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "the image's /%s is larger than %d MiB", path, limit>>20)
	}
	return content, err
}
