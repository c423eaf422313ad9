package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// WatchMachine implements hangar.MachineReader.
func (c *Client) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	in := get(machinePath(ref, "events"))
	in.query = url.Values{"follow": {"true"}}
	return stream[hangar.MachineChange](ctx, c, in)
}

// FollowLogs implements hangar.LogService.
func (c *Client) FollowLogs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	in := get(appPath(app, "logs"))
	in.query = logQuery(q)
	in.query.Set("follow", "true")
	if q.Edge {
		in.query.Set("edge", "true")
	}
	return stream[hangar.LogEntry](ctx, c, in)
}

// Logs implements hangar.LogService.
func (c *Client) Logs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (hangar.LogPage, error) {
	if q.Edge {
		return hangar.LogPage{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid edge: what the edge does is not stored; follow the log to see it")
	}
	in := get(pathOf("api", "v1", "apps", string(app), "logs"))
	in.query = logQuery(q)
	var out struct {
		Data []struct {
			Attributes struct {
				Time     time.Time        `json:"timestamp"`
				Message  string           `json:"message"`
				Level    string           `json:"level"`
				Instance hangar.MachineID `json:"instance"`
				Region   hangar.Region    `json:"region"`
				Meta     struct {
					Event struct {
						Provider hangar.LogProvider `json:"provider"`
					} `json:"event"`
				} `json:"meta"`
			} `json:"attributes"`
		} `json:"data"`
		Meta struct {
			Next string `json:"next_token"`
		} `json:"meta"`
	}
	if err := c.do(ctx, in, &out); err != nil {
		return hangar.LogPage{}, err
	}
	page := hangar.LogPage{Next: out.Meta.Next}
	for _, d := range out.Data {
		a := d.Attributes
		page.Entries = append(page.Entries, hangar.LogEntry{
			Time: a.Time, Message: a.Message, Level: a.Level, Provider: a.Meta.Event.Provider, Instance: a.Instance, Region: a.Region,
		})
	}
	return page, nil
}

func logQuery(q hangar.LogQuery) url.Values {
	v := url.Values{}
	if q.Instance != "" {
		v.Set("instance", string(q.Instance))
	}
	if q.Region != "" {
		v.Set("region", string(q.Region))
	}
	if q.Token != "" {
		v.Set("next_token", q.Token)
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// stream yields the JSON values of an answer as they arrive. The last value of a
// stream that failed is an error.
func stream[T any](ctx context.Context, c *Client, in call) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		streamCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		silence := time.AfterFunc(streamIdle, cancel)
		defer silence.Stop()
		res, err := c.send(streamCtx, in)
		if err != nil {
			yield(zero, err)
			return
		}
		defer res.Body.Close()
		d := json.NewDecoder(alive{res.Body, silence})
		for {
			value, err := next[T](d)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				if _, known := errors.AsType[*hangar.Error](err); !known {
					err = lost(ctx, in, err)
				}
				yield(zero, err)
				return
			case !yield(value, nil):
				return
			}
		}
	}
}

// next reads a value, or the error that ends the stream.
func next[T any](d *json.Decoder) (T, error) {
	var value T
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return value, err
	}
	var failed errorBody
	if err := json.Unmarshal(raw, &failed); err == nil && failed.Code != "" {
		return value, failed.rebuild()
	}
	return value, json.Unmarshal(raw, &value)
}

// alive is a body that restarts the timer of a silent stream whenever data arrives.
type alive struct {
	io.Reader
	silence *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.silence.Reset(streamIdle)
	}
	return n, err
}
