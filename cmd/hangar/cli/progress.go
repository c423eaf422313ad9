package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	barWidth  = 30              // of the bar without title and numbers, in characters
	timeWidth = 8               // of the remaining time, in characters
	linePause = 5 * time.Second // between two lines without a terminal
)

// Progress is a bar that shows the phases of a transfer, one after another. Without a terminal it does
// nothing, or writes lines.
type Progress struct {
	out   io.Writer
	shown bool
	lines bool

	mu    sync.Mutex // guards the fields below: transfers report from several goroutines
	bars  *mpb.Progress
	bar   *mpb.Bar
	title string
	total int64
	line  plainLine
}

// Progress returns a bar on standard error.
func (s *Streams) Progress() *Progress { return &Progress{out: s.Stderr, shown: IsTerminal(s.Stderr)} }

// WorkProgress returns a Progress of long work, which writes lines without a terminal. With quiet, it
// shows nothing.
func (s *Streams) WorkProgress(quiet bool) *Progress {
	if quiet {
		return &Progress{}
	}
	p := s.Progress()
	p.lines = !p.shown
	return p
}

// Update shows how many of total bytes are done. Total 0 means that it is not known yet.
func (p *Progress) Update(title string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lines {
		p.line.update(p.out, title, done, total)
	}
	if !p.shown {
		return
	}
	if title != p.title {
		p.end()
		p.start(title)
	}
	if total != p.total {
		p.total = total
		p.bar.SetTotal(total, false)
	}
	p.bar.SetCurrent(done)
}

func (p *Progress) start(title string) {
	p.title, p.total = title, 0
	p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(barWidth))
	p.bar = p.bars.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(decor.Name(title+" ")),
		mpb.AppendDecorators(decor.CountersKibiByte(" % .1f / % .1f"), decor.AverageSpeed(decor.SizeB1024(0), "  % .1f"),
			decor.Any(timeLeft(), decor.WC{W: timeWidth})),
	)
}

// end leaves the bar on the screen as it is and lets its goroutines finish.
func (p *Progress) end() {
	if p.bars == nil {
		return
	}
	if p.total > 0 && p.bar.Current() >= p.total {
		p.bar.SetTotal(p.total, true)
	} else {
		p.bar.Abort(false)
	}
	p.bars.Wait()
	p.bars, p.bar, p.title = nil, nil, ""
}

// Close ends the bar. It may be called more than once.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// timeLeft formats the remaining time of a bar, if it is known.
func timeLeft() func(decor.Statistics) string {
	var r rate
	return func(s decor.Statistics) string {
		if s.Completed || s.Aborted {
			return ""
		}
		if _, left := r.at(time.Now(), s.Current, s.Total); left > 0 {
			return left.String()
		}
		return ""
	}
}

// rate measures the speed of a transfer, which may have begun earlier.
type rate struct {
	since time.Time // of the first measurement
	from  int64     // bytes that were done then
}

// at returns the bytes per second and the remaining time, or 0 if they are not known.
func (r *rate) at(now time.Time, done, total int64) (bytesPerSecond int64, left time.Duration) {
	if total == 0 {
		return 0, 0
	}
	if r.since.IsZero() {
		r.since, r.from = now, done
	}
	speed := float64(done-r.from) / max(now.Sub(r.since).Seconds(), 1)
	if speed < 1 {
		return 0, 0
	}
	left = time.Duration(float64(total-done) / speed * float64(time.Second))
	return int64(speed), left.Round(time.Second)
}

// plainLine shows progress in lines instead of a bar.
type plainLine struct {
	title string
	rate  rate
	last  time.Time // of the last line
	all   bool      // the last line said that all bytes are done
}

func (l *plainLine) update(out io.Writer, title string, done, total int64) {
	now := time.Now()
	if title != l.title {
		*l = plainLine{title: title, last: now}
		fmt.Fprintf(out, "%s…\n", title)
	}
	speed, left := l.rate.at(now, done, total)
	if total == 0 || l.all || now.Sub(l.last) < linePause {
		return
	}
	l.last, l.all = now, done >= total
	fmt.Fprintf(out, "%s: %s of %s (%d%%)", title, Bytes(done), Bytes(total), done*100/total)
	if speed > 0 && !l.all {
		fmt.Fprintf(out, ", %s/s, %s left", Bytes(speed), left)
	}
	fmt.Fprintln(out)
}
