package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Numbers of the protocol, big endian on the wire.
const (
	magicInit       = 0x4e42444d41474943 // NBDMAGIC
	magicOption     = 0x49484156454f5054 // IHAVEOPT
	magicOptReply   = 0x3e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef

	flagFixed    = 1
	flagNoZeroes = 2

	optGo          = 7
	optStructured  = 8
	optMetaContext = 10

	repAck         = 1
	repInfo        = 3
	repMetaContext = 4
	repError       = 1 << 31

	infoExport = 0

	cmdRead        = 0
	cmdDisconnect  = 2
	cmdBlockStatus = 7

	chunkLast   = 1 // flag
	chunkData   = 1
	chunkHole   = 2
	chunkStatus = 5
	chunkError  = 1 << 15 // and above: errors

	maxChunk  = 64 << 20 // bytes
	maxOption = 1 << 20  // bytes
)

type simpleReply struct {
	Error  uint32
	Cookie uint64
}

type chunk struct {
	Flags  uint16
	Type   uint16
	Cookie uint64
	Length uint32
}

// encode writes a request.
func encode(command uint16, cookie uint64, offset int64, length uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, magicRequest)
	b = binary.BigEndian.AppendUint16(b, 0) // flags
	b = binary.BigEndian.AppendUint16(b, command)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	return binary.BigEndian.AppendUint32(b, length)
}

// negotiate opens an export and its metadata contexts.
func (c *Client) negotiate(export string, contexts []string) error {
	var hello struct {
		Init, Option uint64
		Flags        uint16
	}
	if err := binary.Read(c.conn, binary.BigEndian, &hello); err != nil {
		return err
	}
	if hello.Init != magicInit || hello.Option != magicOption || hello.Flags&flagFixed == 0 {
		return errors.New("the server does not speak the fixed newstyle protocol")
	}
	if err := binary.Write(c.conn, binary.BigEndian, uint32(hello.Flags&(flagFixed|flagNoZeroes))); err != nil {
		return err
	}
	if err := c.option(optStructured, nil, nil); err != nil {
		return fmt.Errorf("structured replies: %w", err)
	}
	if len(contexts) > 0 {
		if err := c.agree(export, contexts); err != nil {
			return fmt.Errorf("contexts: %w", err)
		}
	}
	info := appendText(nil, export)
	info = binary.BigEndian.AppendUint16(info, 0) // only the size is requested
	found := false
	err := c.option(optGo, info, func(kind uint32, payload []byte) {
		if kind == repInfo && len(payload) >= 10 && binary.BigEndian.Uint16(payload) == infoExport {
			c.size, found = int64(binary.BigEndian.Uint64(payload[2:])), true
		}
	})
	if err == nil && (!found || c.size < 0) {
		err = errors.New("the server does not report the size of the export")
	}
	return err
}

// agree requests metadata contexts.
func (c *Client) agree(export string, contexts []string) error {
	b := appendText(nil, export)
	b = binary.BigEndian.AppendUint32(b, uint32(len(contexts)))
	for _, name := range contexts {
		b = appendText(b, name)
	}
	return c.option(optMetaContext, b, func(kind uint32, payload []byte) {
		if kind == repMetaContext && len(payload) > 4 {
			c.contexts[string(payload[4:])] = binary.BigEndian.Uint32(payload)
		}
	})
}

func appendText(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

// option sends an option and passes every reply to take until the server acknowledges.
func (c *Client) option(option uint32, payload []byte, take func(kind uint32, payload []byte)) error {
	b := binary.BigEndian.AppendUint64(nil, magicOption)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	if _, err := c.conn.Write(append(b, payload...)); err != nil {
		return err
	}
	for {
		var h struct {
			Magic                uint64
			Option, Kind, Length uint32
		}
		if err := binary.Read(c.conn, binary.BigEndian, &h); err != nil {
			return err
		}
		if h.Magic != magicOptReply || h.Option != option || h.Length > maxOption {
			return errors.New("the server does not answer the request")
		}
		reply := make([]byte, h.Length)
		if _, err := io.ReadFull(c.conn, reply); err != nil {
			return err
		}
		switch {
		case h.Kind == repAck:
			return nil
		case h.Kind&repError != 0:
			return fmt.Errorf("the server refuses with %d: %s", h.Kind&^repError, reply)
		case take != nil:
			take(h.Kind, reply)
		}
	}
}

// take reads the payload of a chunk.
func (r *request) take(conn io.Reader, h chunk) error {
	if h.Type == chunkData && r.into != nil {
		return r.data(conn, int64(h.Length))
	}
	payload := make([]byte, h.Length)
	if _, err := io.ReadFull(conn, payload); err != nil {
		return err
	}
	be := binary.BigEndian
	switch {
	case h.Type == chunkHole && r.into != nil && len(payload) == 12:
		part, err := r.part(int64(be.Uint64(payload)), int64(be.Uint32(payload[8:])))
		clear(part)
		return err
	case h.Type == chunkStatus && r.status != nil && len(payload) >= 4:
		var parts []status
		for b := payload[4:]; len(b) >= 8; b = b[8:] {
			parts = append(parts, status{be.Uint32(b), be.Uint32(b[4:])})
		}
		r.status(be.Uint32(payload), parts)
	case h.Type >= chunkError && len(payload) >= 6:
		text := payload[6:]
		r.fail(max(be.Uint32(payload), 1), string(text[:min(len(text), int(be.Uint16(payload[4:])))]))
	case h.Type >= chunkError:
		r.fail(uint32(syscall.EIO), "")
	}
	return nil
}

// data reads a data chunk into its place in the buffer.
func (r *request) data(conn io.Reader, length int64) error {
	var offset uint64
	if err := binary.Read(conn, binary.BigEndian, &offset); err != nil {
		return err
	}
	part, err := r.part(int64(offset), length-8)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(conn, part)
	return err
}

// part returns the part of the buffer for a range that the server names.
func (r *request) part(offset, length int64) ([]byte, error) {
	from := offset - r.offset
	if from < 0 || length < 0 || from+length > int64(len(r.into)) {
		return nil, fmt.Errorf("answer of %d bytes at %d, which were not requested", length, offset)
	}
	return r.into[from : from+length], nil
}
