package txlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"

	"github.com/pierrec/lz4/v4"
	"github.com/superfly/ltx"
)

// Page is the content of one page after a transaction.
type Page struct {
	Number uint32
	Data   []byte
}

// Tx is one transaction: the pages that it changed, in the order of their numbers, without
// sqlite.LockPage. A transaction with Commit 0 drops the database.
type Tx struct {
	ltx.Header
	Pages []Page
	Post  ltx.Checksum // of the whole database after it
}

// Pos returns the position after the transaction.
func (t *Tx) Pos() ltx.Pos { return ltx.Pos{TXID: t.MaxTXID, PostApplyChecksum: t.Post} }

var isoTable = crc64.MakeTable(crc64.ISO)

// Encoder encodes transactions as LTX files, version 3: see https://github.com/superfly/ltx. It keeps its
// compression tables between transactions, because allocating them is most of the cost of a small
// transaction. It is not safe for concurrent use.
type Encoder struct {
	lz4   lz4.Compressor
	block []byte
	index []byte
}

// Append appends the encoded transaction to b.
func (e *Encoder) Append(b []byte, t *Tx) ([]byte, error) {
	t.Version = ltx.Version
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("transaction %s: %w", t.MaxTXID, err)
	}
	head, err := t.MarshalBinary()
	if err != nil {
		return nil, err
	}
	start := len(b)
	b = append(b, head...)
	sum := crc64.Update(0, isoTable, head)
	if need := lz4.CompressBlockBound(int(t.PageSize)); len(e.block) < need {
		e.block = make([]byte, need)
	}
	e.index = e.index[:0]
	for _, p := range t.Pages {
		n, err := e.lz4.CompressBlock(p.Data, e.block)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("compress page %d: %w", p.Number, errors.Join(err, errCompress))
		}
		at := len(b)
		b = binary.BigEndian.AppendUint32(b, p.Number)
		b = binary.BigEndian.AppendUint16(b, ltx.PageHeaderFlagSize)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		sum = crc64.Update(sum, isoTable, b[at:])
		b = append(b, e.block[:n]...)
		sum = crc64.Update(sum, isoTable, p.Data)
		e.index = binary.AppendUvarint(e.index, uint64(p.Number))
		e.index = binary.AppendUvarint(e.index, uint64(at-start))
		e.index = binary.AppendUvarint(e.index, uint64(len(b)-at))
	}
	rest := len(b)
	b = append(b, make([]byte, ltx.PageHeaderSize)...)
	b = append(b, e.index...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(len(e.index)+1))
	b = binary.BigEndian.AppendUint64(b, uint64(t.Post))
	sum = crc64.Update(sum, isoTable, b[rest:])
	return binary.BigEndian.AppendUint64(b, uint64(ltx.ChecksumFlag)|sum), nil
}

var errCompress = errors.New("lz4 block compression")

// errShort is returned for a truncated file.
var errShort = fmt.Errorf("%w: it ends early", ltx.ErrInvalidFile)

// Decode decodes the output of an Encoder, and verifies its checksum.
func Decode(b []byte) (*Tx, error) {
	t, rest, sum, err := decodeHeader(b)
	if err != nil {
		return nil, err
	}
	last := uint32(0)
	for {
		if len(rest) < ltx.PageHeaderSize {
			return nil, errShort
		}
		number, flags := binary.BigEndian.Uint32(rest), binary.BigEndian.Uint16(rest[4:])
		if number == 0 {
			break
		}
		if flags != ltx.PageHeaderFlagSize || number <= last || number > t.Commit {
			return nil, fmt.Errorf("%w: page %d", ltx.ErrInvalidFile, number)
		}
		last = number
		if len(rest) < ltx.PageHeaderSize+4 {
			return nil, errShort
		}
		n := int(binary.BigEndian.Uint32(rest[ltx.PageHeaderSize:]))
		sum = crc64.Update(sum, isoTable, rest[:ltx.PageHeaderSize+4])
		rest = rest[ltx.PageHeaderSize+4:]
		if n > len(rest) {
			return nil, errShort
		}
		data := make([]byte, t.PageSize)
		if got, err := lz4.UncompressBlock(rest[:n], data); err != nil || got != len(data) {
			return nil, fmt.Errorf("%w: content of page %d", ltx.ErrInvalidFile, number)
		}
		sum = crc64.Update(sum, isoTable, data)
		rest = rest[n:]
		t.Pages = append(t.Pages, Page{Number: number, Data: data})
	}
	if len(rest) < ltx.PageHeaderSize+8+ltx.TrailerSize {
		return nil, errShort
	}
	trailer := rest[len(rest)-ltx.TrailerSize:]
	sum = crc64.Update(sum, isoTable, rest[:len(rest)-ltx.ChecksumSize])
	t.Post = ltx.Checksum(binary.BigEndian.Uint64(trailer))
	if ltx.ChecksumFlag|ltx.Checksum(sum) != ltx.Checksum(binary.BigEndian.Uint64(trailer[8:])) {
		return nil, ltx.ErrChecksumMismatch
	}
	return t, nil
}

func decodeHeader(b []byte) (*Tx, []byte, uint64, error) {
	if len(b) < ltx.HeaderSize {
		return nil, nil, 0, errShort
	}
	var t Tx
	if err := t.UnmarshalBinary(b); err != nil {
		return nil, nil, 0, err
	}
	if err := t.Validate(); err != nil {
		return nil, nil, 0, fmt.Errorf("%w: %w", ltx.ErrInvalidFile, err)
	}
	return &t, b[ltx.HeaderSize:], crc64.Update(0, isoTable, b[:ltx.HeaderSize]), nil
}

// DecodeMeta decodes the header and the checksum of a transaction, without its pages.
func DecodeMeta(b []byte) (*Tx, error) {
	t, rest, _, err := decodeHeader(b)
	if err != nil {
		return nil, err
	}
	if len(rest) < ltx.TrailerSize {
		return nil, io.ErrUnexpectedEOF
	}
	t.Post = ltx.Checksum(binary.BigEndian.Uint64(rest[len(rest)-ltx.TrailerSize:]))
	return t, nil
}
