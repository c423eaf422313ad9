package delivery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/publicdial"
	"github.com/hangar-platform/hangar/provider"
)

const userAgent = hangar.EdgeProduct + "-webhooks"

// maxRetryAfter bounds how long a receiver may ask not to be called.
const maxRetryAfter = time.Hour

// attempt is the result of one request to a receiver.
type attempt struct {
	at     time.Time // when it began
	took   time.Duration
	status int // of the answer; 0: there was none
	err    hangar.DeliveryError
	after  time.Duration // as the receiver asks
	cut    bool          // the daemon ended it, so it says nothing about the receiver
}

// CloudEvent returns an event of a Machine as it is sent; original selects the names of the public
// platform.
func CloudEvent(e *hangar.MachineEvent, original bool) provider.MachineEvent {
	prefix := hangar.MachineEventTypes.Neutral
	if original {
		prefix = hangar.MachineEventTypes.Original
	}
	return provider.MachineEvent{
		ID:        string(e.Event.ID),
		Source:    "/v1/apps/" + url.PathEscape(string(e.App)) + "/machines/" + url.PathEscape(string(e.Machine)),
		Type:      prefix + string(e.Event.Type),
		Time:      time.UnixMilli(e.Event.Timestamp).UTC(),
		MachineID: string(e.Machine),
		Status:    e.Event.Status,
		Data:      dataOf(&e.Event),
	}
}

// eventData is the member "data" of the body. Error and Transition have the names of the public
// platform, the other fields those of the API's events.
type eventData struct {
	Error        string               `json:"Error,omitempty"`
	Transition   string               `json:"Transition,omitempty"`
	Source       hangar.EventSource   `json:"source,omitempty"`
	ExitEvent    *hangar.ExitEvent    `json:"exit_event,omitempty"`
	RestartCount int                  `json:"restart_count,omitempty"`
	ColdBoot     string               `json:"cold_boot,omitempty"`
	Schedule     *hangar.ScheduledRun `json:"schedule,omitempty"`
}

func dataOf(e *hangar.Event) json.RawMessage {
	data := eventData{Source: e.Source}
	if r := e.Request; r != nil {
		data.Error, data.ExitEvent, data.RestartCount, data.ColdBoot, data.Schedule = r.Error, r.ExitEvent, r.RestartCount, r.ColdBoot, r.Schedule
	}
	if hangar.MachineState(e.Status) == hangar.MachineFailed {
		data.Transition = string(e.Type)
		if e.Type == hangar.EventLaunch { // which prepares the image
			data.Transition = "prepareImage"
		}
	}
	raw, _ := json.Marshal(data) //nolint:errchkjson // every field can be encoded
	return raw
}

// send makes one attempt to deliver an event.
func (d *Dispatcher) send(ctx context.Context, spec *hangar.EventReceiver, e *hangar.MachineEvent) attempt {
	event := CloudEvent(e, spec.OriginalNames)
	return d.post(ctx, spec, func(ctx context.Context) (*http.Request, error) { return event.NewRequest(ctx, spec.URL) })
}

// pingType is the type of the event of Ping.
const pingType = "io.platform.webhook.ping"

func newPing(ctx context.Context, target, id string, now time.Time) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader("{}"))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": string(hangar.NewEventID(now)), "Ce-Source": "/webhooks/" + url.PathEscape(id), "Ce-Type": pingType,
		"Ce-Time": now.UTC().Format(time.RFC3339Nano),
	} {
		r.Header.Set(name, value)
	}
	return r, nil
}

// post signs and sends one request.
func (d *Dispatcher) post(ctx context.Context, spec *hangar.EventReceiver, build func(context.Context) (*http.Request, error)) (a attempt) {
	a.at = d.o.Now()
	began := time.Now()
	limit, cancel := context.WithTimeout(ctx, d.timing.Attempt)
	defer cancel()
	defer func() {
		a.took = time.Since(began)
		a.cut = a.err != "" && ctx.Err() != nil
	}()
	r, err := build(limit)
	if err == nil {
		err = provider.Signer{Secret: spec.SecretAt(a.at).Reveal(), Now: d.o.Now}.Sign(r)
	}
	if err != nil { // the URL was checked when it was set
		a.err = hangar.DeliveryBadAnswer
		return a
	}
	r.Header.Set("User-Agent", userAgent)
	client := d.public
	if spec.AllowPrivate {
		client = d.private
	}
	d.counts.inFlight.Inc()
	defer d.counts.inFlight.Dec()
	resp, err := client.Do(r)
	if err != nil {
		a.err = classify(err)
		return a
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // an endless answer is cut off
	_ = resp.Body.Close()
	a.status = resp.StatusCode
	switch {
	case a.status >= 200 && a.status < 300:
	case a.status >= 300 && a.status < 400:
		a.err = hangar.DeliveryRedirect
	default:
		a.err = hangar.DeliveryStatus
		a.after = retryAfter(resp.Header)
	}
	return a
}

// retryAfter is how long a receiver asks not to be called, if it says so in seconds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// classify says what kind of failure an error of HTTP is.
func classify(err error) hangar.DeliveryError {
	var refused *publicdial.Error
	var dns *net.DNSError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var timeout interface{ Timeout() bool }
	var op *net.OpError
	switch {
	case errors.As(err, &refused) && refused.Rule != "":
		return hangar.DeliveryNotAllowed
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return hangar.DeliveryTimeout
	case errors.As(err, &dns):
		return hangar.DeliveryNoName
	case errors.As(err, &record), errors.As(err, &alert), errors.As(err, &certificate), errors.As(err, &invalid):
		return hangar.DeliveryBadTLS
	case errors.As(err, &refused), errors.As(err, &op) && op.Op == "dial":
		return hangar.DeliveryNoConnect
	}
	return hangar.DeliveryBadAnswer
}
