package compress

import (
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Levels: by BenchmarkLevels, the last ones before bodies shrink little more for much more
// processor time.
const (
	gzipLevel   = 2
	brotliLevel = 1
	zstdLevel   = zstd.SpeedFastest
	// zstdWindow bounds the memory of an encoder and a client's decoder.
	zstdWindow = 256 << 10
)

// encoder compresses its input. Flush passes on all of it.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// Encoders are large and reused. One that was not closed is left to the garbage collector.
var pools [encodings]sync.Pool

// take returns an encoder that writes to w.
func (e encoding) take(w io.Writer) encoder {
	if enc, ok := pools[e].Get().(encoder); ok {
		enc.Reset(w)
		return enc
	}
	return e.make(w)
}

// give returns a closed encoder for reuse.
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
		if err == nil { // always: the options are constants
			return enc
		}
	}
	enc, err := gzip.NewWriterLevel(w, gzipLevel)
	if err != nil {
		return gzip.NewWriter(w)
	}
	return enc
}
