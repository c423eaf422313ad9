package lease

import "testing"

// TestPollOfSummaries: a summary tells whether a node is ahead, and whether it has to be asked.
func TestPollOfSummaries(t *testing.T) {
	mine := map[string]Mark{"a.db": {2, 5}, "b.db": {2, 7}}
	for name, c := range map[string]struct {
		marks          map[string]Mark
		ahead, unclear bool
	}{
		"same":           {map[string]Mark{"a.db": {2, 5}, "b.db": {2, 7}}, false, false},
		"ahead":          {map[string]Mark{"a.db": {2, 5}, "b.db": {2, 8}}, true, true},
		"later epoch":    {map[string]Mark{"a.db": {3, 1}, "b.db": {2, 7}}, true, true},
		"behind":         {map[string]Mark{"a.db": {2, 5}}, false, true},
		"another name":   {map[string]Mark{"a.db": {2, 5}, "c.db": {2, 7}}, false, true},
		"both are ahead": {map[string]Mark{"a.db": {2, 6}, "b.db": {2, 6}}, false, true},
	} {
		s := Summarize(c.marks)
		v := view{nodes: map[uint64]liveNode{2: {nodeRecord{Standing: Standing{Candidate: true, Summary: &s}, Vacancy: 1}}}}
		if p := v.poll(1, mine); p.ahead != c.ahead || p.heard[0].Unclear(mine) != c.unclear {
			t.Errorf("%s: ahead %t, unclear %t", name, p.ahead, p.heard[0].Unclear(mine))
		}
	}
}
