package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/hangar-platform/hangar"
)

// document is the JSON form.
type document struct {
	Region         words      `json:"region"`
	Instance       string     `json:"instance"`
	PreferInstance string     `json:"prefer_instance"`
	App            string     `json:"app"`
	State          string     `json:"state"`
	Elsewhere      flag       `json:"elsewhere"`
	Timeout        string     `json:"timeout"`
	Fallback       string     `json:"fallback"`
	AllowBypass    flag       `json:"allow_bypass"`
	Transform      *transform `json:"transform"`
	Cache          *struct {
		Prefix      string `json:"prefix"`
		TTL         int64  `json:"ttl"` // seconds
		Invalidate  flag   `json:"invalidate"`
		AllowBypass flag   `json:"allow_bypass"`
	} `json:"cache"`
}

type transform struct {
	Path          string   `json:"path"`
	DeleteHeaders []string `json:"delete_headers"`
	SetHeaders    []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"set_headers"`
}

// words is a comma-separated text, or a list of texts.
type words string

func (l *words) UnmarshalJSON(b []byte) error {
	var many []string
	if json.Unmarshal(b, &many) == nil {
		*l = words(strings.Join(many, ","))
		return nil
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return errors.New("region is neither a text nor a list of texts")
	}
	*l = words(one)
	return nil
}

// flag is a boolean, or a text that the header form would accept as one.
type flag bool

func (f *flag) UnmarshalJSON(b []byte) error {
	var is bool
	if json.Unmarshal(b, &is) == nil {
		*f = flag(is)
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err == nil {
		if is, err := truth("it", text); err == nil {
			*f = flag(is)
			return nil
		}
	}
	return errors.New("a field that is true or false is something else")
}

// ParseJSON reads an instruction of a body of at most MaxJSON bytes.
func ParseJSON(body []byte) (*Instruction, error) {
	if len(body) > MaxJSON {
		return nil, refused("it is longer than %d bytes", MaxJSON)
	}
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] != '{' {
		return nil, refused("its body is no JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	var d document
	if err := dec.Decode(&d); err != nil {
		return nil, refused("%s", jsonFault(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, refused("something follows the JSON object")
	}
	in := &Instruction{
		Instance: hangar.MachineID(d.Instance), PreferInstance: hangar.MachineID(d.PreferInstance), App: hangar.AppName(d.App),
		State: d.State, Elsewhere: bool(d.Elsewhere), Fallback: Fallback(d.Fallback),
	}
	var err error
	if d.Region != "" {
		if in.Regions, in.AnyRegion, err = regions(string(d.Region)); err != nil {
			return nil, err
		}
	}
	if d.Timeout != "" {
		if in.Timeout, err = timeout(d.Timeout); err != nil {
			return nil, err
		}
	}
	if d.Transform != nil {
		if in.Transform, err = d.Transform.check(); err != nil {
			return nil, err
		}
	}
	switch c := d.Cache; {
	case c == nil:
	case bool(c.Invalidate):
		in.Cache = &CacheRule{Invalidate: true}
	default:
		if in.Cache, err = cacheRule(c.Prefix); err != nil {
			return nil, err
		}
		if in.Cache.TTL, err = ttl(c.TTL); err != nil {
			return nil, err
		}
		in.Cache.AllowBypass = bool(c.AllowBypass || d.AllowBypass)
	}
	return in, in.validate()
}

// jsonFault is the part of a decoder's error that helps a user.
func jsonFault(err error) string {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		return kind.Field + " is a JSON " + kind.Value
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "its body is no complete JSON object"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}
