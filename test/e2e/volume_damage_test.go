package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// TestDamagedImages puts files in the place of the image of a Machine at rest that are not
// what the volume was. The Machine must not start and say why, nothing may be mounted, and
// the file must stay as it is. With its image it starts again.
func TestDamagedImages(t *testing.T) {
	p := start(t)
	image := p.pushBlocks(t)
	for _, encrypted := range []bool{true, false} {
		name := "plain"
		if encrypted {
			name = "encrypted"
		}
		t.Run(name, func(t *testing.T) {
			d := p.volume(t, hangar.VolumeCreate{Encrypted: &encrypted})
			m, w := d.runBlocks(t, image, name)
			if _, err := w.Run(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			m.stop(t)
			d.mustBeClosed(t)
			other := p.volume(t, hangar.VolumeCreate{Name: "other", Encrypted: &encrypted})
			n, _ := other.runBlocks(t, image, name+"-other")
			n.stop(t)
			other.mustBeClosed(t)
			whole := d.image() + ".whole"
			if err := os.Rename(d.image(), whole); err != nil {
				t.Fatal(err)
			}
			for _, damage := range damages(encrypted, other.image()) {
				t.Run(damage.name, func(t *testing.T) {
					if !damage.missing {
						local(t, "cp", "--sparse=always", whole, d.image())
						damage.do(t, d.image())
					}
					d.mustRefuse(t, m, damage.missing)
				})
			}
			_ = os.Remove(d.image())
			if err := os.Rename(whole, d.image()); err != nil {
				t.Fatal(err)
			}
			m.mustHave(t, w.Acked())
		})
	}
}

// damage is something that may happen to an image.
type damage struct {
	name    string
	missing bool
	do      func(t *testing.T, image string)
}

func damages(encrypted bool, other string) []damage {
	truncate := func(size func(int64) int64) func(*testing.T, string) {
		return func(t *testing.T, image string) {
			t.Helper()
			fi, err := os.Stat(image)
			if err == nil {
				err = os.Truncate(image, size(fi.Size()))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	random := func(offset, length int64) func(*testing.T, string) {
		return func(t *testing.T, image string) {
			t.Helper()
			f, err := os.OpenFile(image, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.NewOffsetWriter(f, offset), io.LimitReader(rand.Reader, length))
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []damage{
		{name: "missing", missing: true},
		{name: "empty", do: truncate(func(int64) int64 { return 0 })},
		{name: "half", do: truncate(func(size int64) int64 { return size / 2 })},
		{name: "a sector short", do: truncate(func(size int64) int64 { return size - 512 })},
		{name: "random beginning", do: random(0, 8<<20)},
	}
	if !encrypted {
		return all
	}
	return append(all,
		damage{name: "of another volume, with another key", do: func(t *testing.T, image string) {
			t.Helper()
			local(t, "cp", "--sparse=always", other, image)
		}},
		damage{name: "a file system that is not encrypted", do: func(t *testing.T, image string) {
			t.Helper()
			local(t, "mkfs.ext4", "-q", "-F", image)
		}},
		damage{name: "flipped in the magic", do: flip(0)},
		damage{name: "flipped in the name of the cipher", do: flip(8)},
		damage{name: "flipped in the digest of the key", do: flip(112)},
		damage{name: "flipped in the first key slot", do: flip(208 + 8)}, // number of iterations
		damage{name: "flipped in the material of the key", do: flip(4096 + 1000)},
	)
}

// flip changes one bit.
func flip(offset int64) func(*testing.T, string) {
	return func(t *testing.T, image string) {
		t.Helper()
		f, err := os.OpenFile(image, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		_, err = f.ReadAt(b, offset)
		if err == nil {
			b[0] ^= 1
			_, err = f.WriteAt(b, offset)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// mustRefuse starts the Machine, which must not come to run.
func (d *disk) mustRefuse(t *testing.T, m *machine, missing bool) {
	t.Helper()
	before := ""
	if !missing {
		before = digest(t, d.image())
	}
	_, err := d.p.c.StartMachine(t.Context(), m.ref)
	state := m.wait(t, hangar.WaitSettled)
	if state == hangar.MachineStarted {
		t.Fatalf("the Machine runs\n%s", d.history(t))
	}
	said := ""
	if err != nil {
		said = err.Error()
	} else if e := m.events(t)[0]; e.Request != nil {
		said = e.Request.Error
		if e.Request.ExitEvent != nil {
			said += e.Request.ExitEvent.Error
		}
	}
	t.Logf("the Machine is %s: %s", state, said)
	if !strings.Contains(said, string(d.ref.ID)) {
		t.Errorf("the error does not name the volume: %q", said)
	}
	events, err := d.p.c.VolumeEvents(t.Context(), d.ref)
	if err != nil || len(events) == 0 || events[0].Type != hangar.VolumeEventDamaged || events[0].Fault == "" {
		t.Errorf("no event says what is wrong: %v\n%s", err, d.history(t))
	}
	d.mustBeClosed(t)
	if missing {
		if _, err := os.Stat(d.image()); err == nil {
			t.Error("an image was made where there was none")
		}
		return
	}
	if after := digest(t, d.image()); after != before {
		t.Errorf("the image was changed: %s", filepath.Base(d.image()))
	}
}

// digest is of the size of a file, and of all blocks of it that are not zero.
func digest(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	var end int64
	for {
		from, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err == nil {
			end, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		}
		if err == nil {
			err = hashBlocks(h, f, from, end)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d bytes, %x", fi.Size(), h.Sum(nil))
}

// hashBlocks hashes the blocks between two offsets that are not zero, with their offsets.
func hashBlocks(h io.Writer, f io.ReaderAt, from, end int64) error {
	block, zero := make([]byte, 4096), make([]byte, 4096)
	for at := from; at < end; at += int64(len(block)) {
		n, err := f.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(block[:n], zero[:n]) {
			fmt.Fprintln(h, at)
			if _, err := h.Write(block[:n]); err != nil {
				return err
			}
		}
	}
	return nil
}
