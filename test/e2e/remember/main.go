// Command remember is the program that end-to-end tests run in Machines: it keeps a state in memory
// and on disk that shows any loss.
//
// The state is determined by the number of steps alone, so that two instances after as many steps
// answer with the same checksums, and a test compares one in a Machine with one that runs beside
// it. Each step changes pages all over the memory and appends to a file of the root file system.
// All requests are HTTP:
//
//	POST /step?n=10      do steps; answers like /state
//	GET  /state          number of steps, checksums, and a random id of this process
//	GET  /quick?x        what follows the question mark, at once
//	POST /chatter?ms=5   print a numbered line to stdout every so often, without end
//	POST /eat?mb=300     take memory and never give it back
//	POST /exit?code=7    end; or with signal=11
//
// On port 7000 it answers each line with how many there were on this connection.
package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/bits"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const pageBytes = 4096

// keeper holds the state.
type keeper struct {
	id   string
	file *os.File

	mu      sync.Mutex
	steps   uint64
	memory  []byte
	written int64    // bytes of file
	eaten   [][]byte // see eat
}

// answer is the state as it is reported.
type answer struct {
	ID     string `json:"id"`
	Steps  uint64 `json:"steps"`
	Memory string `json:"memory"` // checksum
	File   string `json:"file"`   // checksum
	Bytes  int64  `json:"bytes"`  // of the file
}

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	port, lines, path, mb := setting("REMEMBER_PORT", "8080"), setting("REMEMBER_LINES", "7000"), setting("REMEMBER_FILE", "/kept"), setting("REMEMBER_MB", "16")
	size, err := strconv.Atoi(mb)
	if err != nil {
		return fmt.Errorf("REMEMBER_MB: %w", err)
	}
	k := &keeper{id: rand.Text(), memory: make([]byte, size<<20)}
	if k.file, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600); err != nil {
		return err
	}
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		fmt.Printf("keeper %s stops: %s\n", k.id, <-stopped)
		os.Exit(0)
	}()
	l, err := net.Listen("tcp", ":"+lines)
	if err != nil {
		return err
	}
	go serveLines(l)
	http.HandleFunc("POST /step", k.handleStep)
	http.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { k.reply(w) })
	http.HandleFunc("GET /quick", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.RawQuery) })
	http.HandleFunc("POST /chatter", handleChatter)
	http.HandleFunc("POST /eat", k.handleEat)
	http.HandleFunc("POST /exit", handleExit)
	fmt.Printf("keeper %s serves\n", k.id)
	return (&http.Server{Addr: ":" + port, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

func setting(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (k *keeper) handleStep(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for range n {
		if err := k.step(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	k.reply(w)
}

// step changes 16 pages that the number of the step chooses, and appends to the
// file what one of them then holds.
func (k *keeper) step() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.steps++
	random := k.steps * 0x9e3779b97f4a7c15
	var page []byte
	for range 16 {
		random ^= bits.RotateLeft64(random, 25) ^ bits.RotateLeft64(random, 47)
		random *= 0xd1342543de82ef95
		at := random % uint64(len(k.memory)/pageBytes) * pageBytes
		page = k.memory[at : at+pageBytes]
		word := page[random>>32%(pageBytes/8)*8:]
		binary.LittleEndian.PutUint64(word, binary.LittleEndian.Uint64(word)+random)
	}
	sum := sha256.Sum256(page)
	if _, err := k.file.Write(sum[:]); err != nil {
		return err
	}
	k.written += int64(len(sum))
	return k.file.Sync()
}

func (k *keeper) reply(w http.ResponseWriter) {
	k.mu.Lock()
	defer k.mu.Unlock()
	content := make([]byte, k.written)
	if _, err := k.file.ReadAt(content, 0); err != nil && k.written > 0 {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	memory, file := sha256.Sum256(k.memory), sha256.Sum256(content)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer{ID: k.id, Steps: k.steps, Memory: hex.EncodeToString(memory[:]), File: hex.EncodeToString(file[:]), Bytes: k.written})
}

func handleChatter(_ http.ResponseWriter, r *http.Request) {
	ms, _ := strconv.Atoi(r.FormValue("ms"))
	go func() {
		for n, tick := 0, time.Tick(time.Duration(max(ms, 1))*time.Millisecond); ; n++ {
			fmt.Printf("line %d\n", n)
			<-tick
		}
	}()
}

func (k *keeper) handleEat(w http.ResponseWriter, r *http.Request) {
	mb, _ := strconv.Atoi(r.FormValue("mb"))
	k.mu.Lock()
	defer k.mu.Unlock()
	for range mb {
		piece := make([]byte, 1<<20)
		for at := 0; at < len(piece); at += pageBytes {
			piece[at] = byte(at>>12) | 1
		}
		k.eaten = append(k.eaten, piece)
	}
	fmt.Fprintln(w, len(k.eaten))
}

func handleExit(w http.ResponseWriter, r *http.Request) {
	code, _ := strconv.Atoi(r.FormValue("code"))
	sig, _ := strconv.Atoi(r.FormValue("signal"))
	w.WriteHeader(http.StatusAccepted)
	_ = http.NewResponseController(w).Flush()
	if sig == 0 {
		os.Exit(code)
	}
	signal.Reset(syscall.Signal(sig))
	_ = syscall.Kill(os.Getpid(), syscall.Signal(sig))
}

func serveLines(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close()
			n := 0
			for s := bufio.NewScanner(conn); s.Scan(); {
				n++
				fmt.Fprintf(conn, "%d %s\n", n, s.Text())
			}
		}()
	}
}
