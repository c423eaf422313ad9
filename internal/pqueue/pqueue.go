// Package pqueue is a priority queue whose elements can be moved and removed.
package pqueue

import (
	"container/heap"
	"iter"
	"slices"
)

// Place is the position of an element in its Queue. The zero Place is in none.
type Place struct {
	number int // from 1
}

// Queued reports whether the element is in a Queue.
func (p Place) Queued() bool { return p.number > 0 }

// Queue returns its elements in order, the least first. New makes one. It is for one goroutine at a
// time.
type Queue[T any] struct {
	h elements[T]
}

// New returns an empty Queue that is ordered by less. place returns the Place of an element; it is
// nil if elements are only put in and popped.
func New[T any](less func(a, b T) bool, place func(T) *Place) *Queue[T] {
	return &Queue[T]{h: elements[T]{less: less, place: place}}
}

// Len returns the number of elements.
func (q *Queue[T]) Len() int { return len(q.h.list) }

// All returns the elements in no particular order.
func (q *Queue[T]) All() iter.Seq[T] { return slices.Values(q.h.list) }

// First returns the least element, and false if there is none.
func (q *Queue[T]) First() (first T, ok bool) {
	if len(q.h.list) == 0 {
		return first, false
	}
	return q.h.list[0], true
}

// Put adds an element, or moves an element of the Queue whose order has changed.
func (q *Queue[T]) Put(x T) {
	if q.h.place != nil {
		if p := q.h.place(x); p.Queued() {
			heap.Fix(&q.h, p.number-1)
			return
		}
	}
	heap.Push(&q.h, x)
}

// Pop removes the least element and returns it. It panics if there is none.
func (q *Queue[T]) Pop() T { return heap.Pop(&q.h).(T) }

// Remove removes an element, if it is in the Queue. The Queue must have places.
func (q *Queue[T]) Remove(x T) {
	if p := q.h.place(x); p.Queued() {
		heap.Remove(&q.h, p.number-1)
	}
}

// elements implements heap.Interface.
type elements[T any] struct {
	list  []T
	less  func(a, b T) bool
	place func(T) *Place
}

func (e *elements[T]) Len() int           { return len(e.list) }
func (e *elements[T]) Less(i, j int) bool { return e.less(e.list[i], e.list[j]) }

func (e *elements[T]) Swap(i, j int) {
	e.list[i], e.list[j] = e.list[j], e.list[i]
	e.note(i, i+1)
	e.note(j, j+1)
}

func (e *elements[T]) Push(x any) {
	e.list = append(e.list, x.(T))
	e.note(len(e.list)-1, len(e.list))
}

func (e *elements[T]) Pop() any {
	last := len(e.list) - 1
	x := e.list[last]
	e.note(last, 0)
	clear(e.list[last:]) // so that the element can be garbage-collected
	e.list = e.list[:last]
	return x
}

func (e *elements[T]) note(i, number int) {
	if e.place != nil {
		e.place(e.list[i]).number = number
	}
}
