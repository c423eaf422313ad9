package chart_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/cmd/hangar/metric/chart"
)

func TestNumber(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{0, "0"},
		{1, "1"},
		{-2.5, "-2.5"},
		{999.9, "1k"},
		{1000, "1k"},
		{1234, "1.23k"},
		{123456, "123k"},
		{5e9, "5G"},
		{0.0451, "45.1m"},
		{0.000002, "2u"},
		{3e-12, "0.003n"},
		{2e21, "2e+03E"},
		{math.NaN(), "-"},
		{math.Inf(1), "+Inf"},
	} {
		if got := chart.Number(tt.v); got != tt.want {
			t.Errorf("Number(%v) = %q, want %q", tt.v, got, tt.want)
		}
	}
}

func TestSpark(t *testing.T) {
	nan := math.NaN()
	for _, tt := range []struct {
		name   string
		points []float64
		width  int
		want   string
	}{
		{"none", nil, 8, ""},
		{"zeros", []float64{0, 0}, 8, "▁▁"},
		{"from zero", []float64{5, 10}, 8, "▅█"},
		{"below zero", []float64{-10, 0, 10}, 8, "▁▅█"},
		{"gap", []float64{0, nan, 7}, 8, "▁ █"},
		{"infinite", []float64{1, math.Inf(1), 1}, 8, "█ █"},
		{"condensed", []float64{0, 0, 2, 6, 8, 8}, 3, "▁▅█"},
		{"a gap is not counted", []float64{8, nan, 4, 4}, 2, "█▅"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := chart.Spark(tt.points, tt.width); got != tt.want {
				t.Errorf("Spark(%v, %d) = %q, want %q", tt.points, tt.width, got, tt.want)
			}
		})
	}
}

func TestDraw(t *testing.T) {
	at := time.Date(2026, 11, 25, 10, 0, 0, 0, time.Local)
	frame := chart.Frame{Start: at, End: at.Add(time.Hour), Width: 40, Height: 6}
	up := make([]float64, 41)
	for i := range up {
		up[i] = float64(i) * 50
	}
	gone := []float64{math.NaN(), math.Inf(1)}
	for _, tt := range []struct {
		name      string
		colors    bool
		lines     []chart.Line
		want, not []string
	}{
		{"nothing", false, nil, nil, []string{"┤"}},
		{"no value", false, []chart.Line{{"a", gone}}, nil, []string{"┤"}},
		{"one value", false, []chart.Line{{"a", []float64{7}}}, []string{"7", "a"}, nil},
		{"constant", false, []chart.Line{{"a", []float64{7, 7, 7}}}, []string{"7", "10:00", "11:00"}, nil},
		{"rising", false, []chart.Line{{"up", up}}, []string{"2k", " 0 ┼", "10:00", "10:30", "11:00", "up"}, []string{"\x1b["}},
		{"not of halves", false, []chart.Line{{"up", []float64{4.47, 11.1}}}, []string{" 0 ┤"}, []string{"e-"}},
		{"two", false, []chart.Line{{"up", up}, {"flat", make([]float64, 41)}}, []string{"*", "flat"}, []string{"\x1b["}},
		{"one without values", false, []chart.Line{{"gone", gone}, {"flat", make([]float64, 41)}}, []string{"flat"}, []string{"gone"}},
		{"a point that is alone", false, []chart.Line{{"a", append(append(slices.Repeat([]float64{math.NaN()}, 60), 7), slices.Repeat([]float64{math.NaN()}, 61)...)}}, []string{"7 ┤", "╴"}, nil},
		{"more points than fit", false, []chart.Line{{"up", slices.Concat(up, up, up)}}, []string{"2k"}, nil},
		{"colors", true, []chart.Line{{"up", up}, {"flat", make([]float64, 41)}}, []string{"\x1b["}, []string{"*"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := frame
			frame.Colors = tt.colors
			got := chart.Draw(frame, tt.lines)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("without %q:\n%s", want, got)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(got, not) {
					t.Errorf("with %q:\n%s", not, got)
				}
			}
			if got != "" && !strings.HasSuffix(got, "\n") {
				t.Errorf("no line feed at the end:\n%s", got)
			}
			t.Logf("\n%s", got)
		})
	}
}

func TestDrawManyDays(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.Local)
	got := chart.Draw(chart.Frame{Start: at, End: at.AddDate(0, 0, 5), Width: 70, Height: 4}, []chart.Line{{"a", []float64{1, 2}}})
	for _, want := range []string{"Nov 20 10:00", "Nov 25 10:00"} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q:\n%s", want, got)
		}
	}
}

// FuzzDraw: a picture has a bounded size, whatever the numbers are.
func FuzzDraw(f *testing.F) {
	f.Add(1.0, 2.0, -3.0, 70, 12)
	f.Add(math.MaxFloat64, -math.MaxFloat64, 0.0, 20, 4)
	f.Add(math.SmallestNonzeroFloat64, 0.0, math.NaN(), 20, 4)
	f.Add(1e300, 1e300+1e285, math.Inf(-1), 2, 12)
	f.Fuzz(func(t *testing.T, a, b, c float64, width, height int) {
		frame := chart.Frame{Start: time.Unix(0, 0), End: time.Unix(3600, 0), Width: 2 + abs(width)%100, Height: 2 + abs(height)%30}
		got := chart.Draw(frame, []chart.Line{{"x", []float64{a, b, c}}, {"y", []float64{c, a}}})
		if lines := strings.Count(got, "\n"); lines > frame.Height+8 {
			t.Errorf("%d lines:\n%s", lines, got)
		}
	})
}

func abs(n int) int { return max(n, -(n + 1)) }
