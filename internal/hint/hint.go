// Package hint attaches to an error the next step to take.
package hint

import "errors"

// advised is an error with a hint.
type advised struct {
	error
	hint string
}

func (e advised) Unwrap() error { return e.error }

// With attaches a hint to an error; nil stays nil.
func With(err error, hint string) error {
	if err == nil {
		return nil
	}
	return advised{err, hint}
}

// Of returns the outermost hint of an error, or the empty string.
func Of(err error) string {
	if e, ok := errors.AsType[advised](err); ok {
		return e.hint
	}
	return ""
}
