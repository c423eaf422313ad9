package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// await replaces the process's own arguments and descriptors by those of a command from the socket.
// It returns false if no command will come.
func await() bool {
	growFDTable()
	text := make([]byte, bundle.MaxCommand)
	control := make([]byte, unix.CmsgSpace(2*4))
	n, controlLen, flags, err := receive(bundle.AwaitFD, text, control)
	if err != nil || n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return false
	}
	files, err := descriptors(control[:controlLen])
	if err != nil || len(files) == 0 {
		return false
	}
	// From here on no other process receives the command.
	if err := unix.Sendto(bundle.AwaitFD, []byte{1}, unix.MSG_NOSIGNAL, nil); err != nil {
		return false
	}
	// The first replaces the socket. Children inherit none of them but the output.
	places := [][]int{{bundle.ResultFD}, {unix.Stdout, unix.Stderr}}
	for i, fd := range files {
		for _, place := range places[i] {
			if unix.Dup3(fd, place, 0) != nil {
				return false
			}
		}
		_ = unix.Close(fd)
	}
	os.Args = append([]string{os.Args[0]}, strings.Split(string(text[:n]), "\x00")...)
	if dir := bundleDir(); dir != "" && unix.Chdir(dir) != nil {
		return false
	}
	return true
}

func receive(fd int, text, control []byte) (n, controlLen, flags int, err error) {
	for {
		n, controlLen, flags, _, err = unix.Recvmsg(fd, text, control, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return n, controlLen, flags, err
		}
	}
}

// descriptors returns the descriptors of a message, at most two.
func descriptors(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) != 1 {
		return nil, err
	}
	return unix.ParseUnixRights(&messages[0])
}
