// Package chart draws series of numbers in a terminal.
package chart

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/guptarohit/asciigraph"
)

// Line is a series to draw. Its points are evenly spaced, and NaN where there is no value.
type Line struct {
	Name   string // in the legend
	Points []float64
}

// Frame is the area in which lines are drawn.
type Frame struct {
	Start, End    time.Time // of the first and the last point
	Width, Height int       // of the area inside the axes, in characters; Width is at least 2
	Colors        bool
}

// palette has the colors of the lines, which are readable on dark and on light backgrounds.
var palette = []asciigraph.AnsiColor{
	asciigraph.Blue, asciigraph.Red, asciigraph.Green, asciigraph.Orange,
	asciigraph.Magenta, asciigraph.Teal, asciigraph.Brown, asciigraph.Gray,
}

// MaxLines is how many lines a chart can have.
var MaxLines = len(palette)

const (
	xTicks    = 5
	sameDay   = "15:04"
	otherDays = "Jan 2 15:04"
)

// Draw returns a chart of at most MaxLines lines, with axes and a legend, that ends with a line feed. It leaves out
// lines without a finite value.
func Draw(f Frame, lines []Line) string {
	var (
		drawn           [][]float64
		names           []string
		lowest, highest = math.Inf(1), math.Inf(-1)
	)
	for _, l := range lines {
		points, least, most := finite(fit(l.Points, f.Width))
		if least > most {
			continue
		}
		drawn, names = append(drawn, points), append(names, l.Name)
		lowest, highest = min(lowest, least), max(highest, most)
	}
	if len(drawn) == 0 {
		return ""
	}
	low, high := axis(lowest, highest)
	for _, points := range drawn {
		for i, v := range points {
			points[i] = float64(f.Height) * share(v, low, high)
		}
	}
	layout := sameDay
	if f.End.Sub(f.Start) > 24*time.Hour {
		layout = otherDays
	}
	options := []asciigraph.Option{
		asciigraph.Height(f.Height), asciigraph.LowerBound(0), asciigraph.UpperBound(float64(f.Height)),
		asciigraph.XAxisRange(float64(f.Start.Unix()), float64(f.End.Unix())),
		asciigraph.XAxisTickCount(xTicks),
		asciigraph.XAxisValueFormatter(func(v float64) string { return time.Unix(int64(v), 0).Format(layout) }),
		asciigraph.YAxisValueFormatter(func(row float64) string {
			part := math.Round(row) / float64(f.Height)
			return Number(high*part + low*(1-part))
		}),
	}
	if f.Colors {
		options = append(options, asciigraph.SeriesColors(palette[:len(drawn)]...))
	} else {
		options = append(options, asciigraph.SeriesChars(charSets()[:len(drawn)]...))
	}
	var b strings.Builder
	b.WriteString(asciigraph.PlotMany(drawn, options...))
	b.WriteByte('\n')
	for i, name := range names {
		mark := marks[i]
		if f.Colors {
			mark = palette[i].String() + "■" + asciigraph.Default.String()
		}
		b.WriteString(mark + " " + name + "\n")
	}
	return b.String()
}

// axis returns the ends of the y axis. The axis includes zero, so that small differences do not look large.
func axis(lowest, highest float64) (low, high float64) {
	low, high = min(lowest, 0), max(highest, 0)
	if low == high {
		high = 1
	}
	return low, high
}

// share returns the position of v between low and high, from 0 to 1. The library cannot draw every float64 itself.
func share(v, low, high float64) float64 {
	const scale = 1.0 / 4 // so that no difference overflows
	return (v*scale - low*scale) / (high*scale - low*scale)
}

// marks distinguish lines when there are no colors.
var marks = []string{"─", "*", "+", "o", "x", "#", "@", "%"}

func charSets() []asciigraph.CharSet {
	sets := []asciigraph.CharSet{asciigraph.DefaultCharSet}
	for _, char := range marks[1:] {
		sets = append(sets, asciigraph.CreateCharSet(char))
	}
	return sets
}

// fit returns width points. The library would interpolate over gaps and lose isolated points.
func fit(points []float64, width int) []float64 {
	points = condense(points, width)
	if len(points) == 0 || len(points) == width {
		return points
	}
	fitted := make([]float64, width)
	for i := range fitted {
		fitted[i] = points[(i*(len(points)-1)+(width-1)/2)/(width-1)]
	}
	return fitted
}

// finite returns points with NaN in place of infinite values, and the least and the greatest finite value. Without a
// finite value, least is greater than most.
func finite(points []float64) (clean []float64, least, most float64) {
	clean, least, most = make([]float64, len(points)), math.Inf(1), math.Inf(-1)
	for i, v := range points {
		if math.IsInf(v, 0) {
			v = math.NaN()
		}
		if clean[i] = v; !math.IsNaN(v) {
			least, most = min(least, v), max(most, v)
		}
	}
	return clean, least, most
}

var sparks = []rune("▁▂▃▄▅▆▇█")

// Spark returns a line of width characters. Each shows the mean of one part of points, on a scale from the minimum, or
// zero if that is less, to the maximum. A part without a value is blank.
func Spark(points []float64, width int) string {
	parts := condense(points, width)
	_, least, most := finite(parts)
	low, high := min(least, 0), max(most, 0)
	var b strings.Builder
	for _, v := range parts {
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case high == low:
			b.WriteRune(sparks[0])
		default:
			b.WriteRune(sparks[int(math.Round((v-low)/(high-low)*float64(len(sparks)-1)))])
		}
	}
	return b.String()
}

// condense returns the means of width parts of points, or points itself if it has at most width values.
func condense(points []float64, width int) []float64 {
	clean, _, _ := finite(points)
	if len(clean) <= width {
		return clean
	}
	parts := make([]float64, width)
	for i := range parts {
		parts[i] = mean(clean[i*len(clean)/width : (i+1)*len(clean)/width])
	}
	return parts
}

func mean(points []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range points {
		if !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / float64(n)
}

// Number formats v with three significant digits and an SI prefix, such as 12.3k or 45m.
func Number(v float64) string {
	const (
		digits   = 3
		prefixes = "num kMGTPE" // each 1000 times the one before; the blank stands for no prefix
		one      = 3            // index of the blank
	)
	switch {
	case v == 0:
		return "0"
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0):
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	// Rounded first, so that 999.9 becomes 1k, not 1000.
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	power := int(math.Floor(math.Log10(math.Abs(v)) / 3))
	i := min(max(power+one, 0), len(prefixes)-1)
	text := strconv.FormatFloat(v/math.Pow(1000, float64(i-one)), 'g', digits, 64)
	return strings.TrimSpace(text + prefixes[i:i+1])
}
