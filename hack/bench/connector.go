package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// requestLimit bounds a request: a worker of Kafka Connect thinks before it answers.
const requestLimit = time.Minute

// connector is one of a worker of Kafka Connect, reached through its REST interface.
type connector struct {
	url    string
	client *http.Client
}

// newConnector names the connector of the worker at the URL. There is one.
func newConnector(worker string) connector {
	return connector{worker + "/connectors/outbox", &http.Client{Timeout: requestLimit}}
}

// broken says why the connector's task has failed, nil where it has not.
func (c connector) broken(ctx context.Context) error {
	var status struct {
		Tasks []struct{ State, Trace string }
	}
	if err := c.ask(ctx, http.MethodGet, "/status", nil, &status); err != nil {
		return err
	}
	for _, task := range status.Tasks {
		if task.State == "FAILED" {
			return fmt.Errorf("the connector's task has failed: %s", task.Trace)
		}
	}
	return nil
}

// ask sends a request about the connector, and reads the answer where one is wanted.
func (c connector) ask(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode a request: %w", err)
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return fmt.Errorf("ask Kafka Connect: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask Kafka Connect: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("ask Kafka Connect: %w", err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf(
			"ask Kafka Connect: %s %s: %s: %s",
			method,
			path,
			response.Status,
			strings.TrimSpace(string(raw)),
		)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("read the answer of Kafka Connect: %w", err)
	}
	return nil
}
