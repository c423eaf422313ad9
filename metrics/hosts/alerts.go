package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/hangar-platform/hangar"
)

// maxReport bounds the report of an organization, in bytes: hangar.MaxAlerts with the largest labels
// and annotations, twice.
const maxReport = 64 << 20

// Alerts is a hangar.AlertHost whose rules the holder evaluates. This host checks and tests rules
// itself, with queries that the holder answers.
type Alerts struct {
	hangar.AlertHost // of this host

	client *Client
}

// NewAlerts returns an AlertHost over own, which evaluates while this host is the holder.
func NewAlerts(own hangar.AlertHost, client *Client) *Alerts { return &Alerts{own, client} }

// AlertReport implements hangar.AlertHost.
func (a *Alerts) AlertReport(ctx context.Context, org hangar.OrgID) (report hangar.AlertReport, err error) {
	if a.client.keeps() {
		return a.AlertHost.AlertReport(ctx, org)
	}
	resp, err := a.client.post(ctx, pathAlerts, http.Header{"Content-Type": {"text/plain"}}, bytes.NewReader([]byte(org)))
	if err != nil {
		return report, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return report, hangar.Errorf(hangar.CodeUnavailable, "", "the host that evaluates alerts answers with the status %d", resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReport)).Decode(&report); err != nil {
		return report, hangar.Errorf(hangar.CodeUnavailable, "", "the alerts cannot be read: %w", fmt.Errorf("answer of the host that evaluates them: %w", err))
	}
	return report, nil
}
