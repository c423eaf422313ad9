package usage

import (
	"errors"
	"math"
	"path/filepath"
	"testing"
	"time"
)

func TestParseDisk(t *testing.T) {
	// Newer kernels have fields beyond those that are known here.
	got, err := parseDisk("   64  1  2048 9 128 2 4096 19 3 21 28 0 0 0 0 5 6\n")
	if want := [...]uint64{64, 1, 2048, 9, 128, 2, 4096, 19, 3, 21, 28}; err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "1 2 3", "a b c d e f g h i j k"} {
		if _, err := parseDisk(text); err == nil {
			t.Errorf("%q is parsed", text)
		}
	}
}

// A device that had other users before counts for its Machine from the beginning of its use on,
// also after the daemon was restarted.
func TestDisksBeginAtZero(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters")
	disk := func(seq, n uint64) Disk {
		d := Disk{Device: 1792, Seq: seq}
		for i := range d.Counts {
			d.Counts[i] = n
		}
		return d
	}
	check := func(d Disks, now Disk, want uint64) {
		t.Helper()
		counts := d.Since("vdb", now)
		for i, n := range counts {
			if i == inProgress {
				if n != now.Counts[i] {
					t.Errorf("%d in progress, want %d", n, now.Counts[i])
				}
			} else if n != want {
				t.Errorf("%s is %d, want %d", DiskFields[i], n, want)
			}
		}
	}
	given := Disks{"vdb": disk(7, 100)}
	if err := given.Write(file); err != nil {
		t.Fatal(err)
	}
	check(given, disk(7, 130), 30)
	again := ReadDisks(file)
	check(again, disk(7, 150), 50)
	check(again, disk(8, 150), 0) // it has become another's and was given back
	check(again, disk(8, 155), 5)
	check(ReadDisks(file+".none"), disk(7, 150), 0)
}

func TestNoDevice(t *testing.T) {
	if _, err := ReadDisk(t.TempDir()); !errors.Is(err, ErrNoDevice) {
		t.Errorf("the disk of a directory: %v", err)
	}
	if _, err := ReadFileSystem(t.TempDir()); !errors.Is(err, ErrNoDevice) {
		t.Errorf("the file system of a directory: %v", err)
	}
	if fs, err := ReadFileSystem("/"); err != nil || fs.Blocks == 0 || fs.BlockSize == 0 || fs.Avail > fs.Free {
		t.Errorf("%+v, %v", fs, err)
	}
}

func TestProcessor(t *testing.T) {
	started := time.Unix(1_000_000, 0)
	at := func(d time.Duration) time.Time { return started.Add(d) }
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.005 {
			t.Errorf("%s is %.3f, want %.3f", what, got, want)
		}
	}
	var p Processor
	var busy time.Duration
	for d := 15 * time.Second; d <= 10*time.Minute; d += 15 * time.Second { // one of two processors in use
		busy = d
		p.Sample(at(d), started, busy, 2)
	}
	load, ok := p.Load()
	if !ok {
		t.Fatal("there is no load")
	}
	near("load 1", load[0], 1-math.Exp(-10))
	near("load 5", load[1], 1-math.Exp(-2))
	near("load 15", load[2], 1-math.Exp(-10.0/15))
	near("idle", p.Idle().Seconds(), 600)

	before := p.Idle()
	p.Sample(at(10*time.Minute+time.Second), started, busy+3*time.Second, 2) // it was throttled late
	if p.Idle() < before {
		t.Errorf("idle goes back from %s to %s", before, p.Idle())
	}

	// After a restart of the daemon nothing is said before the second sample.
	p = Processor{}
	p.Sample(at(time.Hour), started, 30*time.Minute, 2)
	if _, ok := p.Load(); ok {
		t.Error("a load is made up")
	}
	p.Sample(at(time.Hour+15*time.Second), started, 30*time.Minute+30*time.Second, 2)
	load, ok = p.Load()
	if !ok {
		t.Fatal("there is no load")
	}
	near("load 15", load[2], 2)
	near("idle", p.Idle().Seconds(), 2*3615-1830)

	// Another sandbox starts from zero.
	p.Sample(at(2*time.Hour), at(2*time.Hour-10*time.Second), 0, 2)
	load, _ = p.Load()
	near("load 1", load[0], 0)
	near("idle", p.Idle().Seconds(), 20)
}

// BenchmarkFileSystem is what is read of the kernel for each file system of a Machine.
func BenchmarkFileSystem(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadFileSystem("/"); err != nil {
			b.Fatal(err)
		}
		if _, err := ReadDisk("/"); err != nil && !errors.Is(err, ErrNoDevice) {
			b.Fatal(err)
		}
	}
}
