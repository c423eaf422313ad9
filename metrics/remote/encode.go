package remote

import (
	"math"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hangar-platform/hangar/metrics"
)

// maxBatch bounds the bytes of an encoded batch, without its last sample.
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

// encode returns the first samples as a WriteRequest, and how many they are. If org is not "", it
// replaces the metrics.OrgLabel of each series. Two concatenated requests are one request with the
// samples of both.
func encode(samples []metrics.Sample, org string) (b []byte, n int) {
	size := 0
	for n < len(samples) && size < maxBatch {
		size += fieldSize(&samples[n], org)
		n++
	}
	return appendRequest(make([]byte, 0, size), samples[:n], org), n
}

// Encode returns the body of a request with all samples, for writing to a store without a Writer: a
// WriteRequest in the snappy block format.
func Encode(samples []metrics.Sample) []byte {
	size := 0
	for i := range samples {
		size += fieldSize(&samples[i], "")
	}
	return snappy.Encode(nil, appendRequest(make([]byte, 0, size), samples, ""))
}

// fieldSize is the size of a TimeSeries in a WriteRequest.
func fieldSize(s *metrics.Sample, org string) int {
	inner, _ := seriesSize(s, org)
	return protowire.SizeTag(requestSeries) + protowire.SizeBytes(inner)
}

func appendRequest(b []byte, samples []metrics.Sample, org string) []byte {
	for i := range samples {
		b = appendSeries(b, &samples[i], org)
	}
	return b
}

// seriesSize returns the sizes of a TimeSeries and of the Sample in it.
func seriesSize(s *metrics.Sample, org string) (series, sample int) {
	sample = protowire.SizeTag(sampleValue) + protowire.SizeFixed64() +
		protowire.SizeTag(sampleTime) + protowire.SizeVarint(uint64(s.Time))
	series = protowire.SizeTag(seriesSample) + protowire.SizeBytes(sample)
	for i := range s.Labels {
		if l := &s.Labels[i]; org == "" || l.Name != metrics.OrgLabel {
			series += protowire.SizeTag(seriesLabel) + protowire.SizeBytes(labelSize(l.Name, l.Value))
		}
	}
	if org != "" {
		series += protowire.SizeTag(seriesLabel) + protowire.SizeBytes(labelSize(metrics.OrgLabel, org))
	}
	return series, sample
}

func appendSeries(b []byte, s *metrics.Sample, org string) []byte {
	series, sample := seriesSize(s, org)
	b = protowire.AppendTag(b, requestSeries, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(series))
	owned := org == ""
	for i := range s.Labels {
		l := &s.Labels[i]
		if org != "" && l.Name >= metrics.OrgLabel {
			if !owned {
				b = appendLabel(b, metrics.OrgLabel, org)
				owned = true
			}
			if l.Name == metrics.OrgLabel {
				continue
			}
		}
		b = appendLabel(b, l.Name, l.Value)
	}
	if !owned {
		b = appendLabel(b, metrics.OrgLabel, org)
	}
	b = protowire.AppendTag(b, seriesSample, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sample))
	b = protowire.AppendTag(b, sampleValue, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(s.Value))
	b = protowire.AppendTag(b, sampleTime, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(s.Time))
}

// Tags of the fields of a Label and of a TimeSeries with labels.
const (
	labelTag = byte(seriesLabel<<3) | byte(protowire.BytesType)
	nameTag  = byte(labelName<<3) | byte(protowire.BytesType)
	valueTag = byte(labelValue<<3) | byte(protowire.BytesType)
)

// shortLabel is the largest total size of a name and a value for which each encoded length has one
// byte.
const shortLabel = 0x7f - 4

func appendLabel(b []byte, name, value string) []byte {
	if len(name)+len(value) <= shortLabel {
		b = append(b, labelTag, byte(4+len(name)+len(value)), nameTag, byte(len(name)))
		b = append(b, name...)
		b = append(b, valueTag, byte(len(value)))
		return append(b, value...)
	}
	b = protowire.AppendTag(b, seriesLabel, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(labelSize(name, value)))
	b = protowire.AppendTag(b, labelName, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, labelValue, protowire.BytesType)
	return protowire.AppendString(b, value)
}

func labelSize(name, value string) int {
	if n := len(name) + len(value); n <= shortLabel {
		return 4 + n
	}
	return protowire.SizeTag(labelName) + protowire.SizeBytes(len(name)) +
		protowire.SizeTag(labelValue) + protowire.SizeBytes(len(value))
}
