package execute

import (
	"errors"
	"strings"

	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/hangar-platform/hangar"
)

// Fault is an error of a request as clients decode it.
type Fault struct {
	Message    string   `json:"message"`
	Path       []string `json:"path,omitempty"` // aliases of the field; indexes of lists are numbers as texts
	Extensions Details  `json:"extensions"`
}

// Details let a program tell errors apart.
type Details struct {
	// Code is a hangar.Code in capitals, as in NOT_FOUND.
	Code string `json:"code"`
	// Status is the reason of the error, as in name_taken.
	Status string `json:"status,omitempty"`
}

// internalText is all that a client learns of a fault of the platform.
const internalText = "internal error"

// faultOf describes an error.
func faultOf(err error, path []string) Fault {
	f := Fault{Message: internalText, Path: path, Extensions: Details{
		Code: strings.ToUpper(string(hangar.CodeOf(err))), Status: hangar.ReasonOf(err),
	}}
	if e, ok := errors.AsType[*hangar.Error](err); ok && e.Code != hangar.CodeInternal {
		f.Message = e.Message
		if f.Message == "" {
			f.Message = string(e.Code)
		}
	}
	return f
}

// maxFaults bounds the errors of one answer.
const maxFaults = 20

// invalid returns the errors of a request that is not executed.
func invalid(list gqlerror.List) []Fault {
	var faults []Fault
	for _, e := range list[:min(len(list), maxFaults)] {
		faults = append(faults, faultOf(refused("%s", e.Message), nil))
	}
	return faults
}

// refused is the error of a request that can never succeed.
func refused(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", format, args...)
}
