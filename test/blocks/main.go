// Command blocks is the program that tests of volumes run in Machines, and beside them: it writes
// numbered, checksummed records of random bytes in batches, and finds every byte that differs from
// its acknowledged value.
//
// Below each directory of BLOCKS_DIRS (separated by commas; default /data) it keeps a ledger: a
// file of records that are overwritten in random order, one that is appended to and cut, one that
// grows and shrinks, one file per batch that comes and goes, and one that is replaced by a rename
// and names the last complete batch. Every batch is made durable with fsync(2) before that. All
// content follows from a random seed and the number of the batch; so after any crash the expected
// content is known to the byte, and only the batch after the last complete one may be torn. It
// checks that at its start and on request, and stops writing once something is wrong.
//
// Everything is asked for over HTTP, on the port BLOCKS_PORT (default 8080):
//
//	GET  /state            how far each ledger is, and what was wrong at the start
//	POST /check            read everything again; answers like /state
//	POST /run?n=10         do batches in every ledger; answers like /state
//	POST /write            do batches until the client goes, and tell it each one that
//	                       is durable: a line with the number in each ledger
//	POST /fill?mb=100      write a durable file of random bytes, /fill in the first directory
//
// An error of the file system ends it, with code 3.
//
// `blocks durable WAY FILE MB` writes one file instead, and ends with code 3 unless it was
// told, in the way (fsync, fdatasync, O_SYNC, O_DSYNC, msync, syncfs), that it is durable.
package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// exitBroken is the code after an error of the file system.
const exitBroken = 3

// server keeps the ledgers.
type server struct {
	id string // of this process

	mu       sync.Mutex
	ledgers  []*ledger
	found    []uint64 // the last complete batch of each at the start
	problems []string // never forgotten
}

// state is what the server answers.
type state struct {
	ID       string   `json:"id"`
	Found    []uint64 `json:"found"`
	Batches  []uint64 `json:"batches"`
	Read     int64    `json:"read"` // bytes, in this check
	Problems []string `json:"problems"`
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 5 && os.Args[1] == "durable" {
		mb, err := strconv.Atoi(os.Args[4])
		if err == nil {
			err = durable(os.Args[2], os.Args[3], mb<<20)
		}
		if err != nil {
			log.Print(err)
			os.Exit(exitBroken)
		}
		return
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
	s := &server{id: rand.Text()}
	for dir := range strings.SplitSeq(setting("BLOCKS_DIRS", "/data"), ",") {
		l, err := openLedger(dir)
		endIfBroken(err)
		if err != nil {
			s.problems = append(s.problems, dir+": "+err.Error())
			continue
		}
		s.ledgers, s.found = append(s.ledgers, l), append(s.found, l.batch)
	}
	first := s.check()
	fmt.Printf("blocks %s found %v, %d problems in %d bytes\n", s.id, first.Found, len(first.Problems), first.Read)
	for _, p := range first.Problems {
		fmt.Println(p)
	}
	go func() {
		<-stopped
		s.mu.Lock() // between batches
		os.Exit(0)
	}()
	http.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { s.reply(w, s.state()) })
	http.HandleFunc("POST /check", func(w http.ResponseWriter, _ *http.Request) { s.reply(w, s.check()) })
	http.HandleFunc("POST /run", s.handleRun)
	http.HandleFunc("POST /write", s.handleWrite)
	http.HandleFunc("POST /fill", s.handleFill)
	return (&http.Server{Addr: ":" + setting("BLOCKS_PORT", "8080"), ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

// endIfBroken ends the program if the disk is gone: its content is unknown then.
func endIfBroken(err error) {
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EROFS) {
		log.Print(err)
		os.Exit(exitBroken)
	}
}

func setting(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (s *server) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateLocked(0)
}

func (s *server) stateLocked(read int64) state {
	now := state{ID: s.id, Found: s.found, Batches: make([]uint64, len(s.ledgers)), Read: read, Problems: s.problems}
	for i, l := range s.ledgers {
		now.Batches[i] = l.batch
	}
	return now
}

// check reads everything.
func (s *server) check() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	var read int64
	for _, l := range s.ledgers {
		n, problems := l.check()
		read += n
		s.problems = append(s.problems, problems...)
	}
	return s.stateLocked(read)
}

// batches does some in every ledger.
func (s *server) batches(n int) (state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) > 0 {
		return s.stateLocked(0), errors.New("something is wrong: nothing more is written")
	}
	for range n {
		for _, l := range s.ledgers {
			if err := l.next(); err != nil {
				log.Print(err)
				os.Exit(exitBroken)
			}
		}
	}
	return s.stateLocked(0), nil
}

func (s *server) reply(w http.ResponseWriter, now state) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(now)
}

func (s *server) handleRun(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	now, err := s.batches(n)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	s.reply(w, now)
}

func (s *server) handleWrite(w http.ResponseWriter, r *http.Request) {
	told := http.NewResponseController(w)
	for r.Context().Err() == nil {
		now, err := s.batches(1)
		if err != nil {
			fmt.Fprintln(w, err)
			return
		}
		if _, err := fmt.Fprintln(w, strings.Trim(fmt.Sprint(now.Batches), "[]")); err != nil || told.Flush() != nil {
			return
		}
	}
}

func (s *server) ballast() string {
	return filepath.Join(s.ledgers[0].dir, "fill")
}

func (s *server) handleFill(w http.ResponseWriter, r *http.Request) {
	mb, err := strconv.ParseInt(r.FormValue("mb"), 10, 32)
	if err != nil || len(s.ledgers) == 0 {
		http.Error(w, "mb must be a number", http.StatusBadRequest)
		return
	}
	f, err := os.OpenFile(s.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = io.Copy(f, io.LimitReader(rand.Reader, mb<<20))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil { // a full disk is for the test to judge
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	}
	s.reply(w, s.state())
}
