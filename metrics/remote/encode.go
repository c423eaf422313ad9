package remote

import (
	"math"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hangar-platform/hangar/metrics"
)

// maxBatch bounds the bytes of an encoded batch, but for its last sample.
const maxBatch = 256 << 10

// Fields of the messages of remote write 1.0 (prometheus/prompb: remote.proto and types.proto).
const (
	requestSeries protowire.Number = 1 // of WriteRequest: TimeSeries
	seriesLabel   protowire.Number = 1 // of TimeSeries: Label
	seriesSample  protowire.Number = 2 // of TimeSeries: Sample
	labelName     protowire.Number = 1
	labelValue    protowire.Number = 2
	sampleValue   protowire.Number = 1 // double
	sampleTime    protowire.Number = 2 // int64, milliseconds
)

// encode returns the first samples as a WriteRequest, and how many they are. Two requests one
// after the other are one request with the samples of both.
func encode(samples []metrics.Sample) (b []byte, n int) {
	size := 0
	for n < len(samples) && size < maxBatch {
		size += fieldSize(&samples[n])
		n++
	}
	return appendRequest(make([]byte, 0, size), samples[:n]), n
}

// Encode returns the body of a request with all samples, for those who write to a store without a
// Writer: a WriteRequest in the block format of snappy.
func Encode(samples []metrics.Sample) []byte {
	size := 0
	for i := range samples {
		size += fieldSize(&samples[i])
	}
	return snappy.Encode(nil, appendRequest(make([]byte, 0, size), samples))
}

// fieldSize is the size of a TimeSeries in a WriteRequest.
func fieldSize(s *metrics.Sample) int {
	inner, _ := seriesSize(s)
	return protowire.SizeTag(requestSeries) + protowire.SizeBytes(inner)
}

func appendRequest(b []byte, samples []metrics.Sample) []byte {
	for i := range samples {
		b = appendSeries(b, &samples[i])
	}
	return b
}

// seriesSize is the size of a TimeSeries, and that of the Sample in it.
func seriesSize(s *metrics.Sample) (series, sample int) {
	sample = protowire.SizeTag(sampleValue) + protowire.SizeFixed64() +
		protowire.SizeTag(sampleTime) + protowire.SizeVarint(uint64(s.Time))
	series = protowire.SizeTag(seriesSample) + protowire.SizeBytes(sample)
	for i := range s.Labels {
		series += protowire.SizeTag(seriesLabel) + protowire.SizeBytes(labelSize(&s.Labels[i]))
	}
	return series, sample
}

func appendSeries(b []byte, s *metrics.Sample) []byte {
	series, sample := seriesSize(s)
	b = protowire.AppendTag(b, requestSeries, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(series))
	for i := range s.Labels {
		l := &s.Labels[i]
		b = protowire.AppendTag(b, seriesLabel, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(labelSize(l)))
		b = protowire.AppendTag(b, labelName, protowire.BytesType)
		b = protowire.AppendString(b, l.Name)
		b = protowire.AppendTag(b, labelValue, protowire.BytesType)
		b = protowire.AppendString(b, l.Value)
	}
	b = protowire.AppendTag(b, seriesSample, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sample))
	b = protowire.AppendTag(b, sampleValue, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(s.Value))
	b = protowire.AppendTag(b, sampleTime, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(s.Time))
}

func labelSize(l *metrics.Label) int {
	return protowire.SizeTag(labelName) + protowire.SizeBytes(len(l.Name)) +
		protowire.SizeTag(labelValue) + protowire.SizeBytes(len(l.Value))
}
