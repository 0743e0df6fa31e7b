package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What Kafka Connect says of a connector decides whether a run is one.
func TestAConnectorThatHasFailedIsTold(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		code    int
		answer  string
		wantErr string
	}{
		"it runs": {http.StatusOK, `{"name":"outbox","tasks":[{"id":0,"state":"RUNNING"}]}`, ""},
		"it is stopped, without tasks": {
			http.StatusOK, `{"name":"outbox","connector":{"state":"STOPPED"},"tasks":[]}`, "",
		},
		"its task has failed": {
			http.StatusOK, `{"tasks":[{"state":"FAILED","trace":"no such slot\n\tat X.java:1"}]}`, "no such slot",
		},
		"one of its tasks has failed": {
			http.StatusOK, `{"tasks":[{"state":"RUNNING"},{"state":"FAILED","trace":"no such slot"}]}`, "no such slot",
		},
		"there is none": {
			http.StatusNotFound,
			`{"message":"No status found"}`,
			`GET /status: 404 Not Found: {"message":"No status found"}`,
		},
		"nonsense": {http.StatusOK, `<html>`, "read the answer of Kafka Connect"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/connectors/outbox/status" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.WriteHeader(tc.code)
				_, _ = w.Write([]byte(tc.answer))
			}))
			defer worker.Close()

			err := newConnector(worker.URL).broken(t.Context())

			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("broken() = %v, want %q", err, tc.wantErr)
			}
		})
	}
}
