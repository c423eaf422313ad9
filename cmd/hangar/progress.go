package main

import (
	"io"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// barWidth is in characters, name and numbers not counted.
const barWidth = 30

// progress is one bar that follows a transfer through its phases. Where nobody
// looks, it does nothing.
type progress struct {
	out   io.Writer
	shown bool

	mu    sync.Mutex // guards what follows: transfers report from several goroutines
	bars  *mpb.Progress
	bar   *mpb.Bar
	title string
	total int64
}

func newProgress(out io.Writer) *progress { return &progress{out: out, shown: isTerminal(out)} }

// update shows how many of total bytes are done; total 0 means that it is not
// known yet.
func (p *progress) update(title string, done, total int64) {
	if !p.shown {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
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

func (p *progress) start(title string) {
	p.title, p.total = title, 0
	p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(barWidth))
	p.bar = p.bars.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(decor.Name(title+" ")),
		mpb.AppendDecorators(decor.CountersKibiByte(" % .1f / % .1f"), decor.AverageSpeed(decor.SizeB1024(0), "  % .1f")),
	)
}

// end leaves the bar on the screen as it is and lets its goroutines finish.
func (p *progress) end() {
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

// close ends the bar. It may be called more than once.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}
