package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// askTime bounds a request for the info of a node.
const askTime = 10 * time.Second

// node is the hangar-db node in a Machine.
type node struct {
	machine *hangar.Machine
	http    *http.Client
}

// newNode returns the node at a port of a Machine. Connections go through the API.
func newNode(d hangar.MachineDialer, m *hangar.Machine, port int) *node {
	return &node{m, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialMachine(ctx, m.Ref(), port) },
	}}}
}

func (n *node) close() { n.http.CloseIdleConnections() }

// call sends a request, and returns the response if it is successful. The caller closes its body.
func (n *node) call(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the URL, which the user does not know
		}
		return nil, cli.AboutMachine(n.machine.ID, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // the status is an error even without it
	return nil, cli.AboutMachine(n.machine.ID, fmt.Errorf("the node answers %s: %s", resp.Status, strings.TrimSpace(string(text))))
}

// change sends a POST request, and returns the text of the response.
func (n *node) change(ctx context.Context, path string, query url.Values) (string, error) {
	resp, err := n.call(ctx, http.MethodPost, path, query, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return strings.TrimSpace(string(text)), err
}

// info is the response of a node's GET /info: see docs/databases.md.
type info struct {
	ClusterID string `json:"clusterID"`
	IsPrimary bool   `json:"isPrimary"`
	Candidate bool   `json:"candidate"`
	Capture   string `json:"capture"`
	Primary   *struct {
		Hostname string `json:"hostname"`
	} `json:"primary"`
	Databases []database `json:"databases"`
}

type database struct {
	Name     string `json:"name"`
	TXID     string `json:"txID"`
	Checksum string `json:"postApplyChecksum"`
	Pages    int64  `json:"commit"`
	PageSize int64  `json:"pageSize"`
	Diverged bool   `json:"diverged,omitempty"`
}

func (n *node) info(ctx context.Context) (*info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := n.call(ctx, http.MethodGet, "/info", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var i info
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&i); err != nil {
		return nil, cli.AboutMachine(n.machine.ID, fmt.Errorf("the service on this port is not a hangar-db node: %w", err))
	}
	return &i, nil
}

// status is a Machine with the info of its node.
type status struct {
	Machine hangar.MachineID `json:"machine"`
	Name    string           `json:"name"`
	Region  hangar.Region    `json:"region"`
	Error   string           `json:"error,omitempty"` // why Node is missing
	Node    *info            `json:"node,omitempty"`

	node *node
	err  error
}

// askers is how many nodes are asked concurrently.
const askers = 16

// ask requests the info of the nodes in Machines.
func ask(ctx context.Context, d hangar.MachineDialer, machines []*hangar.Machine, port int) []*status {
	all := make([]*status, len(machines))
	var asking sync.WaitGroup
	room := make(chan struct{}, askers)
	for i, m := range machines {
		asking.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			s := &status{Machine: m.ID, Name: m.Name, Region: m.Region, node: newNode(d, m, port)}
			if s.Node, s.err = s.node.info(ctx); s.err != nil {
				s.Error = cli.Message(s.err)
			}
			all[i] = s
		})
	}
	asking.Wait()
	return all
}

func closeAll(all []*status) {
	for _, s := range all {
		s.node.close()
	}
}

// primary returns the node that is the primary.
func primary(app hangar.AppName, all []*status) (*node, error) {
	i := slices.IndexFunc(all, func(s *status) bool { return s.Node != nil && s.Node.IsPrimary })
	if i >= 0 {
		return all[i].node, nil
	}
	var errs []error
	for _, s := range all {
		errs = append(errs, s.err)
	}
	err := fmt.Errorf("no Machine of App %s has a primary", app)
	if cause := errors.Join(errs...); cause != nil {
		err = fmt.Errorf("%w: %w", err, errs[slices.IndexFunc(errs, func(e error) bool { return e != nil })])
	}
	return nil, cli.WithHint(err, "see its nodes: hangar db status "+string(app))
}
