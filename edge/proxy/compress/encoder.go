package compress

import (
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The levels: by BenchmarkLevels, those after which a body shrinks little more for much more
// time of the processor.
const (
	gzipLevel   = 2
	brotliLevel = 1
	zstdLevel   = zstd.SpeedFastest
	// zstdWindow bounds what an encoder and a client's decoder have to remember.
	zstdWindow = 256 << 10
)

// encoder compresses its input. Flush passes on all of it.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// Encoders are large, and used again. One that was not closed is left to the collector.
var pools [encodings]sync.Pool

// take returns an encoder that writes to w.
func (e encoding) take(w io.Writer) encoder {
	if enc, ok := pools[e].Get().(encoder); ok {
		enc.Reset(w)
		return enc
	}
	return e.make(w)
}

// give keeps an encoder that was closed for the next.
func (e encoding) give(enc encoder) {
	enc.Reset(io.Discard)
	pools[e].Put(enc)
}

func (e encoding) make(w io.Writer) encoder {
	if e == brotliCoding {
		return brotli.NewWriterLevel(w, brotliLevel)
	}
	if e == zstandard {
		enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
		if err == nil { // as always: the options are constants
			return enc
		}
	}
	enc, err := gzip.NewWriterLevel(w, gzipLevel)
	if err != nil {
		return gzip.NewWriter(w)
	}
	return enc
}
