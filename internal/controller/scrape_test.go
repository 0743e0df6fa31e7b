package controller

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
	"github.com/postrider/postrider/internal/statusz"
)

// scrapeOf asks a Pod whose worker answers as the handler does.
func scrapeOf(t *testing.T, handler http.HandlerFunc) (statusz.Report, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: host}}
	return NewHTTPScraper(n).Report(t.Context(), pod)
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

func TestScrapeReadsAReport(t *testing.T) {
	t.Parallel()
	want := statusz.Report{
		Version: 1, Worker: "a", Namespace: "shop", Name: "orders", Generation: 3, RunPolicy: "Run",
		Conditions: []statusz.Condition{{Type: "SchemaReady", Status: "True", Reason: "SchemaCurrent"}},
	}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := scrapeOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/statusz" || r.Header.Get("Accept-Encoding") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write(raw)
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestScrapeUnderstandsItsNeighboursOnly(t *testing.T) {
	t.Parallel()
	for body, understood := range map[string]bool{
		`{"version":1,"worker":"a"}`:                     true,
		`{"version":2,"worker":"a","something":"newer"}`: true,
		`{"version":3,"worker":"a"}`:                     false,
		`{"version":0}`:                                  false,
		`{}`:                                             false,
		`{"version":1`:                                   false,
		``:                                               false,
	} {
		if _, err := parseReport([]byte(body)); (err == nil) != understood {
			t.Errorf("%s: error = %v, want understood %v", body, err, understood)
		}
	}
}

// A worker of the next release may report otherwise: what it says beyond our words is left out, and what it does not say
// any more is unknown, not 0 and not wrong.
func TestAReportOfTheNextVersionLeavesUnknownWhatItDoesNotSay(t *testing.T) {
	t.Parallel()
	r, err := parseReport([]byte(`{"version":2,"namespace":"shop","name":"orders","generation":3,"runPolicy":"Run",
		"mood":{"is":"good"},"conditions":[
			{"type":"DatabaseReachable","status":"True","reason":"Reachable","since":"yesterday"},
			{"type":"BrokerReachable","status":"True","reason":"Reachable"},
			{"type":"Novel","status":"False","reason":"Unheard"}],
		"relay":{"shards":4,"heldShards":[0,1,2,3],"destination":"nats/orders","throughput":{"now":7}}}`))
	if err != nil {
		t.Fatal(err)
	}
	got := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, status.Facts{
		Generation: 3, Replicas: 1, Ready: 1, Now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
	}, []statusz.Report{r})
	for kind, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionDatabaseReachable: metav1.ConditionTrue,
		v1alpha1.ConditionBrokerReachable:   metav1.ConditionTrue,
		v1alpha1.ConditionSchemaReady:       metav1.ConditionUnknown,
		v1alpha1.ConditionBacklogHealthy:    metav1.ConditionUnknown,
		v1alpha1.ConditionReady:             metav1.ConditionUnknown,
	} {
		if c := meta.FindStatusCondition(got.Conditions, kind); c == nil || c.Status != want {
			t.Errorf("%s = %+v, want %s", kind, c, want)
		}
	}
	if meta.FindStatusCondition(got.Conditions, "Novel") != nil {
		t.Error("a condition that this release does not know is in the status")
	}
	if got.Backlog != nil || got.DeadLetters != nil || got.Rates != nil || *got.Lease.Held != 4 {
		t.Errorf("status = %+v, want the shards and no count", got)
	}
}

// Security T16: what answers in a Pod may be hostile.
func TestScrapeRefuses(t *testing.T) {
	t.Parallel()
	var led atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { led.Store(true) }))
	t.Cleanup(elsewhere.Close)
	cases := map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		},
		"an error page": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"a report beyond its bound": answer(
			`{"version":1,"worker":"` + strings.Repeat("x", statusz.MaxBytes) + `"}`),
		"headers without end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
		"a body that never ends": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(strings.Repeat(" ", 1<<10))); err != nil {
					return
				}
			}
		},
		"no answer in time": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for name, handler := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r, err := scrapeOf(t, handler); err == nil {
				t.Errorf("it was taken for a report: %+v", r)
			}
		})
	}
	t.Cleanup(func() {
		if led.Load() {
			t.Error("the redirect was followed")
		}
	})
}

// One worker must not be able to make a status that the API server refuses.
func TestReportsArePutIntoForm(t *testing.T) {
	t.Parallel()
	body := `{"version":1,"configError":"` + strings.Repeat("é", 600) + `","conditions":[
		{"type":"Good","status":"True","reason":"Fine","message":"a\nb\u0000c\u001b[31m"},
		{"type":"Bad","status":"Maybe","reason":"Fine"},
		{"type":"Bad","status":"True","reason":"not a reason"},
		{"type":"Bad","status":"True","reason":""},
		{"type":"no type!","status":"True","reason":"Fine"}],
		"relay":{"shards":4,"heldShards":[0,3,4,-1],"destination":"` + strings.Repeat("d", 400) + `",
			"publishedTotal":-5,"publishedPerSecond":-1,"deadLetters":{"open":-1},
			"backlog":{"messages":-7,"precision":"Exact","retrying":9223372036854775807}},
		"consumer":{"source":"x\u0007","appliedTotal":-1,"parked":-1,"gaps":3,"lag":{"messages":-1}}}`
	r, err := parseReport([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	zero, three := int64(0), int64(3)
	want := statusz.Report{
		Version:     1,
		ConfigError: strings.Repeat("é", (maxMessage-3)/2) + "...", // cut at a character
		Conditions:  []statusz.Condition{{Type: "Good", Status: "True", Reason: "Fine", Message: "a b c [31m"}},
		Relay: &statusz.Relay{
			Shards: 4, HeldShards: []int16{0, 3}, Destination: strings.Repeat("d", maxPlace-3) + "...",
			Backlog: &statusz.Backlog{Messages: zero, Precision: "Exact", Retrying: maxCount},
		},
		Consumer: &statusz.Consumer{Source: "x ", Gaps: &three},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"conditions":[{"type":"A","status":"True","reason":"B"}],"relay":{"shards":2}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseReport(body)
		if err != nil {
			return
		}
		for _, c := range r.Conditions {
			if !reasonForm.MatchString(c.Reason) || len(c.Message) > maxMessage {
				t.Errorf("condition not in form: %+v", c)
			}
		}
		if _, err := json.Marshal(r); err != nil && !errors.As(err, new(*json.MarshalerError)) {
			t.Errorf("a report that cannot be written again: %v", err)
		}
	})
}
