// Package measure writes the counters of a node in the text format of Prometheus, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/). A node has a few dozen series without
// buckets, for which the Prometheus client library would make the program larger by a tenth.
package measure

import (
	"bytes"
	"io"
	"strconv"
	"strings"
)

// ContentType is the media type of a Page.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Page collects series, and groups those with the same name. Names are in the order of their first use.
type Page struct {
	names    []string
	families map[string]*bytes.Buffer
}

// Source adds series to a page.
type Source interface{ Measure(p *Page) }

// Counter adds a value that only grows. labels alternate names and values. All series with one name have the same
// help and label names.
func (p *Page) Counter(name, help string, v float64, labels ...string) {
	p.add("counter", name, help, v, labels)
}

// Gauge adds a value that goes up and down.
func (p *Page) Gauge(name, help string, v float64, labels ...string) {
	p.add("gauge", name, help, v, labels)
}

func (p *Page) add(kind, name, help string, v float64, labels []string) {
	b := p.families[name]
	if b == nil {
		if p.families == nil {
			p.families = map[string]*bytes.Buffer{}
		}
		b = &bytes.Buffer{}
		p.families[name], p.names = b, append(p.names, name)
		b.WriteString("# HELP " + name + " " + strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
	}
	b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(labels[i] + `="` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")) + `"`)
	}
	if len(labels) > 1 {
		b.WriteByte('}')
	}
	b.WriteString(" " + strconv.FormatFloat(v, 'g', -1, 64) + "\n")
}

// WriteTo writes the page.
func (p *Page) WriteTo(w io.Writer) (int64, error) {
	var n int64
	for _, name := range p.names {
		m, err := w.Write(p.families[name].Bytes())
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
