package hosts

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hangar-platform/hangar/metrics"
)

// Fields of the messages of remote write 1.0, as in metrics/remote.
const (
	requestSeries protowire.Number = 1
	seriesLabel   protowire.Number = 1
	labelName     protowire.Number = 1
	labelValue    protowire.Number = 2
)

var errMalformed = errors.New("the samples cannot be read")

// check refuses a remote write in which a series does not name exactly one tenant, or does not name
// host as the host that measured it. It refuses duplicate fields, because readers differ in which one
// they use.
func check(body []byte, host string) error {
	if n, err := snappy.DecodedLen(body); err != nil || n > maxRequest {
		return errMalformed
	}
	request, err := snappy.Decode(nil, body)
	if err != nil {
		return errMalformed
	}
	return eachField(request, func(n protowire.Number, series []byte) error {
		if n != requestSeries {
			return nil
		}
		return checkSeries(series, host)
	})
}

func checkSeries(series []byte, host string) error {
	tenants, hosts := 0, 0
	err := eachField(series, func(n protowire.Number, label []byte) error {
		if n != seriesLabel {
			return nil
		}
		name, value, err := pair(label)
		if err != nil {
			return err
		}
		switch string(name) {
		case metrics.OrgLabel:
			tenants++
		case metrics.HostLabel:
			if hosts++; string(value) != host {
				return fmt.Errorf("a series is of host %.8q, and host %s writes", value, host)
			}
		}
		return nil
	})
	if err == nil && (tenants != 1 || hosts != 1) {
		err = errors.New("a series does not name one tenant and the host that writes it")
	}
	return err
}

// pair reads a label, which has one name and one value.
func pair(label []byte) (name, value []byte, err error) {
	err = eachField(label, func(n protowire.Number, text []byte) error {
		switch {
		case n == labelName && name == nil:
			name = text
		case n == labelValue && value == nil:
			value = text
		case n == labelName || n == labelValue:
			return errMalformed
		}
		return nil
	})
	return name, value, err
}

// eachField calls f with the length-delimited fields of a message.
func eachField(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return errMalformed
			}
			message = message[n:]
			continue
		}
		field, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return errMalformed
		}
		if err := f(number, field); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}
