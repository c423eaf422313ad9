package dm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// sector is the unit of tables, in bytes. It does not depend on the device.
const sector = 512

// chunk is the copy unit of a snapshot, in sectors: small enough that a random write copies little
// unwritten data, and large enough that copies are few.
const chunk = 32

// Table is what a device does, from its first byte to its last.
type Table struct {
	sectors int64
	target  string
	args    []string
}

// Names of targets.
const (
	TargetCrypt    = "crypt"
	TargetLinear   = "linear"
	TargetOrigin   = "snapshot-origin"
	TargetSnapshot = "snapshot"
)

// underIndex returns the position of the underlying device among a target's arguments.
func underIndex(target string) (int, bool) {
	switch target {
	case TargetLinear, TargetOrigin, TargetSnapshot:
		return 0, true
	case TargetCrypt:
		return 3, true // after the cipher, the key, and the offset of the IV
	default:
		return 0, false
	}
}

// Linear is a table for the unchanged content of another device.
func Linear(size int64, under string) Table {
	return Table{sectors: size / sector, target: TargetLinear, args: []string{under, "0"}}
}

// Origin is a table for another device that has snapshots: it copies old blocks for them before a
// write.
func Origin(size int64, under string) Table {
	return Table{sectors: size / sector, target: TargetOrigin, args: []string{under}}
}

// Snapshot is a table for the content of a device before the first write through its Origin. Old
// blocks are copied to the device copies, and are lost with the snapshot.
func Snapshot(size int64, under, copies string) Table {
	return Table{sectors: size / sector, target: TargetSnapshot, args: []string{under, copies, "N", strconv.Itoa(chunk)}}
}

// CopyRoom is the size of a device for copies that never gets full.
func CopyRoom(size int64) int64 {
	const unit = chunk * sector
	return (size + unit - 1) / unit * unit
}

// Size is the size of the device, in bytes.
func (t Table) Size() int64 { return t.sectors * sector }

// Sized returns the same table for another size.
func (t Table) Sized(size int64) Table {
	t.sectors = size / sector
	return t
}

// Under returns the underlying device.
func (t Table) Under() string {
	i, _ := underIndex(t.target)
	return t.args[i]
}

// Over returns the same table over another device.
func (t Table) Over(device string) Table {
	i, _ := underIndex(t.target)
	t.args = slices.Clone(t.args)
	t.args[i] = device
	return t
}

func (t Table) line() string {
	return fmt.Sprintf("0 %d %s %s\n", t.sectors, t.target, strings.Join(t.args, " "))
}

// String omits the keys.
func (t Table) String() string {
	return fmt.Sprintf("%s over %s, %d bytes", t.target, t.Under(), t.Size())
}

var errTable = errors.New("not a table of one known target")

// parseTable parses the output of dmsetup. Its errors do not repeat the output, which contains keys.
func parseTable(out string) (Table, error) {
	line, rest, _ := strings.Cut(strings.TrimSpace(out), "\n")
	fields := strings.Fields(line)
	if len(fields) < 3 || rest != "" || fields[0] != "0" {
		return Table{}, errTable
	}
	sectors, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || sectors < 0 {
		return Table{}, errTable
	}
	t := Table{sectors: sectors, target: fields[2], args: fields[3:]}
	if i, ok := underIndex(t.target); !ok || i >= len(t.args) {
		return Table{}, errTable
	}
	return t, nil
}
