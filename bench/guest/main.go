// Command guest is the program that benchmarks run in Machines and in the sandboxes they are
// compared with: a web server that counts its requests and fills memory on request.
//
// It listens on port 8080 and answers every path with the number of requests so far; /touch?mb=N
// fills N MiB first. Called with any argument it ends at once: benchmarks of exec run it so.
package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		return
	}
	server := &http.Server{Addr: ":8080", Handler: &memory{}, ReadHeaderTimeout: 10 * time.Second}
	if err := server.ListenAndServe(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// memory answers requests and remembers.
type memory struct {
	mu      sync.Mutex
	asked   int
	touched []byte
}

// ServeHTTP answers with the number of the request.
func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if r.URL.Path == "/touch" {
		mb, err := strconv.Atoi(r.URL.Query().Get("mb"))
		if err != nil || mb < 0 {
			http.Error(w, "mb must be a number", http.StatusBadRequest)
			return
		}
		m.touched = fill(make([]byte, mb<<20))
	}
	fmt.Fprintf(w, "%d\n", m.asked)
}

// fill writes what no compression and no search for zeros makes smaller.
func fill(b []byte) []byte {
	random := rand.NewPCG(1, uint64(len(b)))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], random.Uint64())
	}
	return b
}
