package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/hangar-platform/hangar"
)

// Read returns the record at a key, or ErrNotFound.
func Read[T any](ctx context.Context, s Store, key string) (T, Item, error) {
	var v T
	item, err := s.Get(ctx, key)
	if err != nil {
		return v, item, err
	}
	v, err = Decode[T](item)
	return v, item, err
}

// Damaged is the error for a record that cannot be read. It has hangar.ReasonRecordDamaged, and concerns only those
// whose record it is.
func Damaged(key string, err error) error {
	return &hangar.Error{
		Code: hangar.CodeInternal, Reason: hangar.ReasonRecordDamaged, Message: "A record of the cluster state cannot be read",
		Err: fmt.Errorf("record %s: %w", key, err),
	}
}

// Decode returns the record of an item, which others may share: it must not be
// changed below its fields. It answers hangar.ReasonRecordDamaged for one that cannot be read.
func Decode[T any](item Item) (T, error) {
	v, err := Parse(item, func(value []byte) (v T, err error) {
		err = json.Unmarshal(value, &v)
		return v, err
	})
	if err != nil {
		return v, Damaged(item.Key, err)
	}
	return v, nil
}

// Write returns the operation that stores a record.
func Write(key string, v any) (Op, error) {
	b, err := hangar.EncodeJSON(v)
	if err != nil {
		return Op{}, fmt.Errorf("encode record %s: %w", key, err)
	}
	return Put(key, b), nil
}

// NextNumber returns the number after a counter's, and what claims it in a transaction.
func NextNumber(ctx context.Context, s Store, counter string) (uint64, Compare, Op, error) {
	item, err := s.Get(ctx, counter)
	cond, n := Absent(counter), uint64(0)
	switch {
	case err == nil:
		cond = Unchanged(item)
		if n, err = strconv.ParseUint(string(item.Value), 10, 64); err != nil {
			return 0, cond, Op{}, fmt.Errorf("counter %s: %w", counter, err)
		}
	case !errors.Is(err, ErrNotFound):
		return 0, cond, Op{}, err
	}
	n++
	return n, cond, Put(counter, strconv.AppendUint(nil, n, 10)), nil
}

// HangarError turns an error of a Store into one for the user. A hangar.Error and the end of
// a context stay what they are.
func HangarError(err error) error {
	var e *hangar.Error
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, ErrInvalid) { // repeating it cannot help
		return &hangar.Error{Code: hangar.CodeInvalid, Message: "The cluster state does not take this, it may be too large", Err: err}
	}
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "The cluster state cannot be reached", Err: err}
}
