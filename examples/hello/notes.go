package main

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"sync"
)

// maxNote bounds a note, in bytes.
const maxNote = 1 << 10

// notes keeps lines in a file.
type notes struct {
	path string
	mu   sync.Mutex // held while the file is changed
}

// ServeHTTP appends the body of a POST as a note, and answers with all notes.
func (n *notes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Method == http.MethodPost {
		note, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxNote))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := n.add(note); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	all, err := os.ReadFile(n.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(all) // the client may be gone
}

// add appends a line and syncs the file.
func (n *notes) add(note []byte) error {
	f, err := os.OpenFile(n.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(note, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}
