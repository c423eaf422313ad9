// Command guest is what the benchmark of volumes runs in Machines, and in the places they
// are compared with: it writes and reads one file, as fio's engine psync would.
//
//	guest                                  wait for a signal
//	guest write DIR MB                     write 1 MB at a time, then fsync; prints bytes per second
//	guest read DIR                         read 1 MB at a time; prints bytes per second
//	guest random-write DIR SECONDS         write 4 KB anywhere and fsync; prints writes per second, and how long
//	                                       the slowest one took, in seconds
//	guest random-read DIR SECONDS          read 4 KB anywhere; the same of reads
//	guest change DIR PERCENT KB            write over so much, in runs of so many KB, then fsync
//
// All bytes that it writes are random.
package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	pieceBytes = 1 << 20
	smallBytes = 4 << 10
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		stopped := make(chan os.Signal, 1)
		signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
		<-stopped
		return nil
	}
	if len(args) < 2 {
		return errors.New("say what to do, and where")
	}
	var numbers [2]int
	for i, text := range args[2:] {
		n, err := strconv.Atoi(text)
		if err != nil || i == len(numbers) {
			return fmt.Errorf("%q does not belong here", text)
		}
		numbers[i] = n
	}
	path := filepath.Join(args[1], "content")
	lasts := time.Duration(numbers[0]) * time.Second
	switch args[0] {
	case "write":
		return within(path, os.O_CREATE|os.O_WRONLY, func(f *os.File) error { return write(f, numbers[0]) })
	case "read":
		return within(path, os.O_RDONLY, read)
	case "random-write":
		return within(path, os.O_RDWR, func(f *os.File) error {
			return randomly(f, lasts, func(b []byte, at int64) error {
				if _, err := f.WriteAt(b, at); err != nil {
					return err
				}
				return f.Sync()
			})
		})
	case "random-read":
		return within(path, os.O_RDONLY, func(f *os.File) error {
			return randomly(f, lasts, func(b []byte, at int64) error {
				_, err := f.ReadAt(b, at)
				return err
			})
		})
	case "change":
		return within(path, os.O_RDWR, func(f *os.File) error { return change(f, numbers[0], numbers[1]) })
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

func within(path string, flags int, do func(*os.File) error) error {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// source yields random bytes, faster than any disk takes them.
func source() *rand.ChaCha8 {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32()) //nolint:gosec // data to measure with is no secret
	}
	return rand.NewChaCha8(seed)
}

// write makes its pieces before the clock starts: they are never the same, so that
// nothing on the way can save work.
func write(f *os.File, mb int) error {
	random, took := source(), time.Duration(0)
	pieces := make([]byte, 16*pieceBytes)
	for done := 0; done < mb; done += 16 {
		_, _ = random.Read(pieces)
		began := time.Now()
		for i := range min(16, mb-done) {
			if _, err := f.Write(pieces[i*pieceBytes:][:pieceBytes]); err != nil {
				return err
			}
		}
		took += time.Since(began)
	}
	began := time.Now()
	if err := f.Sync(); err != nil {
		return err
	}
	took += time.Since(began)
	_, err := fmt.Println(float64(mb*pieceBytes) / took.Seconds())
	return err
}

func read(f *os.File) error {
	began, piece, total := time.Now(), make([]byte, pieceBytes), 0
	for {
		n, err := f.Read(piece)
		total += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := fmt.Println(float64(total) / time.Since(began).Seconds())
	return err
}

func randomly(f *os.File, lasts time.Duration, do func(b []byte, at int64) error) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	random, b, times := source(), make([]byte, smallBytes), 0
	places := rand.New(random) //nolint:gosec // see source
	_, _ = random.Read(b)
	var slowest, last time.Duration
	for began := time.Now(); last < lasts; times++ {
		if err := do(b, places.Int64N(fi.Size()/smallBytes)*smallBytes); err != nil {
			return err
		}
		now := time.Since(began)
		slowest, last = max(slowest, now-last), now
	}
	_, err = fmt.Println(float64(times)/last.Seconds(), slowest.Seconds())
	return err
}

// change writes over different runs, at multiples of their length.
func change(f *os.File, percent, kb int) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	run := int64(kb) << 10
	if run <= 0 || fi.Size() < run {
		return errors.New("the runs do not fit")
	}
	random, b := source(), make([]byte, run)
	places := rand.New(random).Perm(int(fi.Size() / run)) //nolint:gosec // see source
	places = places[:max(int(fi.Size()*int64(percent)/100/run), 1)]
	slices.Sort(places)
	for _, at := range places {
		_, _ = random.Read(b)
		if _, err := f.WriteAt(b, int64(at)*run); err != nil {
			return err
		}
	}
	return f.Sync()
}
