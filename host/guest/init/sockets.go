package guestinit

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// SocketsArgs returns the arguments that make the program at path describe open
// files: it reads what AppendFile writes and prints what ListeningSockets reads.
func SocketsArgs(path string) []string { return []string{path, "-s"} }

// File is an open file of a process in the Machine.
type File struct {
	PID int32
	FD  int32
}

// AppendFile appends f as the program reads it.
func AppendFile(b []byte, f File) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(f.PID))
	return binary.LittleEndian.AppendUint32(b, uint32(f.FD))
}

// Socket is a socket that accepts connections.
type Socket struct {
	File
	Proto   string // "tcp" or "udp"
	Address netip.AddrPort
}

// RecordSize is how many bytes the program prints for each socket at most.
const RecordSize = 44

// The fields of the record that the program prints for each socket; see struct sock in src/init.c.
const (
	typeOffset  = 8
	waitOffset  = 12
	nameOffset  = 16
	portOffset  = nameOffset + 2
	addr4Offset = nameOffset + 4
	addr6Offset = nameOffset + 8
)

// ListeningSockets reads what the program printed, and returns the sockets that
// accept connections or, of those that know none, are bound to a port and have no
// peer. An incomplete record at the end is left out.
func ListeningSockets(printed []byte) []Socket {
	var out []Socket
	for ; len(printed) >= RecordSize; printed = printed[RecordSize:] {
		s, ok := parseSocket(printed[:RecordSize])
		if ok {
			out = append(out, s)
		}
	}
	return out
}

func parseSocket(r []byte) (Socket, bool) {
	s := Socket{File: File{PID: int32(binary.LittleEndian.Uint32(r)), FD: int32(binary.LittleEndian.Uint32(r[4:]))}}
	switch binary.LittleEndian.Uint32(r[typeOffset:]) {
	case unix.SOCK_STREAM:
		s.Proto = "tcp"
	case unix.SOCK_DGRAM:
		s.Proto = "udp"
	default:
		return Socket{}, false
	}
	var addr netip.Addr
	switch binary.LittleEndian.Uint16(r[nameOffset:]) {
	case unix.AF_INET:
		addr = netip.AddrFrom4([4]byte(r[addr4Offset:]))
	case unix.AF_INET6:
		addr = netip.AddrFrom16([16]byte(r[addr6Offset:])).Unmap()
	default:
		return Socket{}, false
	}
	port := binary.BigEndian.Uint16(r[portOffset:])
	s.Address = netip.AddrPortFrom(addr, port)
	waiting := binary.LittleEndian.Uint32(r[waitOffset:]) != 0
	return s, waiting && port != 0
}
