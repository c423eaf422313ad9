package guest

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
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

// readColonFile reads a file of colon-separated lines from the topmost layer that
// has an opinion on it. A file that is absent has no rows.
func readColonFile(layers []string, path string) ([][]string, error) {
	for _, layer := range slices.Backward(layers) {
		f, err := openInLayer(layer, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, errHidden):
			return nil, nil
		case err != nil:
			return nil, err
		}
		defer f.Close()
		var rows [][]string
		lines := bufio.NewScanner(&boundedReader{f, maxAccountFile})
		for lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' {
				rows = append(rows, strings.Split(line, ":"))
			}
		}
		return rows, lines.Err()
	}
	return nil, nil
}

// errHidden says that a layer removes what the layers below it have.
var errHidden = errors.New("hidden by a whiteout")

// openInLayer opens a regular file of one layer. Symbolic links are resolved with
// the layer as the root, so that a hostile image cannot point at the host.
func openInLayer(layer, path string) (*os.File, error) {
	root, err := unix.Open(layer, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: layer, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFCHR:
		return nil, errHidden
	default:
		return nil, fs.ErrNotExist
	}
	// Reopening through /proc opens exactly the file that was just checked.
	return os.Open("/proc/self/fd/" + strconv.Itoa(fd))
}

// boundedReader is an io.LimitedReader that fails instead of ending early.
type boundedReader struct {
	f    *os.File
	left int
}

func (r *boundedReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errors.New("account file larger than 1 MiB")
	}
	if len(p) > r.left {
		p = p[:r.left]
	}
	n, err := r.f.Read(p)
	r.left -= n
	return n, err
}
