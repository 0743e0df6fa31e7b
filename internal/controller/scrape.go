package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/postrider/postrider/internal/statusz"
)

const (
	// scrapeTimeout bounds one request, connection included.
	scrapeTimeout = 2 * time.Second
	// maxHeaderBytes bounds what a worker may answer before its report.
	maxHeaderBytes = 8 << 10
	// Bounds of what a status takes over of a report.
	maxConditions, maxReason, maxMessage, maxPlace = 32, 128, 512, 300
)

var (
	errOtherResource = errors.New("the report is of another resource")
	errTooLarge      = fmt.Errorf("the report is larger than %d bytes", statusz.MaxBytes)
	reasonForm       = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$`)
)

// HTTPScraper asks Pods over HTTP. A Pod may be in a stranger's hands: what it answers is bounded in time and size,
// leads nowhere else, and is put into form before it reaches a status.
type HTTPScraper struct {
	client *http.Client
	port   int
}

// NewHTTPScraper returns a scraper for workers that listen on a port.
func NewHTTPScraper(port int) *HTTPScraper {
	return &HTTPScraper{port: port, client: &http.Client{
		Timeout: scrapeTimeout,
		Transport: &http.Transport{
			Proxy:                  nil, // a Pod is reached directly or not at all
			DialContext:            (&net.Dialer{Timeout: scrapeTimeout}).DialContext,
			DisableCompression:     true,
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Report implements Scraper.
func (s *HTTPScraper) Report(ctx context.Context, pod *corev1.Pod) (statusz.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	target := "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(s.port)) + "/statusz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return statusz.Report{}, fmt.Errorf("ask the worker: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return statusz.Report{}, fmt.Errorf("ask the worker: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	if resp.StatusCode != http.StatusOK {
		return statusz.Report{}, fmt.Errorf("ask the worker: it answers %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusz.MaxBytes+1))
	if err != nil {
		return statusz.Report{}, fmt.Errorf("read the report: %w", err)
	}
	return parseReport(body)
}

// parseReport reads a report of this version or a neighbouring one.
func parseReport(body []byte) (statusz.Report, error) {
	var r statusz.Report
	if len(body) > statusz.MaxBytes {
		return r, errTooLarge
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return statusz.Report{}, errors.New("the report is not JSON of the expected form")
	}
	if r.Version < statusz.Version-1 || r.Version > statusz.Version+1 || r.Version < 1 {
		return statusz.Report{}, fmt.Errorf("the report has version %d, not %d", r.Version, statusz.Version)
	}
	return inForm(r), nil
}

// inForm keeps of a report only what a status can hold: one worker must not be able to make a status unwritable.
func inForm(r statusz.Report) statusz.Report {
	r.ConfigError = plain(r.ConfigError, maxMessage)
	r.Conditions = slices.DeleteFunc(r.Conditions, func(c statusz.Condition) bool {
		return len(c.Type) > maxReason || len(c.Reason) > maxReason ||
			!reasonForm.MatchString(c.Type) || !reasonForm.MatchString(c.Reason) ||
			!slices.Contains([]string{"True", "False", "Unknown"}, c.Status)
	})
	r.Conditions = r.Conditions[:min(len(r.Conditions), maxConditions)]
	for i := range r.Conditions {
		r.Conditions[i].Message = plain(r.Conditions[i].Message, maxMessage)
	}
	if r.Relay != nil {
		relayInForm(r.Relay)
	}
	if r.Consumer != nil {
		consumerInForm(r.Consumer)
	}
	return r
}

func relayInForm(r *statusz.Relay) {
	r.Destination = plain(r.Destination, maxPlace)
	r.Shards = min(max(r.Shards, 0), math.MaxInt16)
	r.HeldShards = slices.DeleteFunc(r.HeldShards, func(s int16) bool { return s < 0 || int(s) >= r.Shards })
	counts(&r.PublishedTotal)
	r.PublishedPerSec, r.ArrivedPerSec = count(r.PublishedPerSec), count(r.ArrivedPerSec)
	r.DeadLetters = openCount(r.DeadLetters)
	if b := r.Backlog; b != nil {
		counts(&b.Messages, &b.InFlight, &b.Retrying, &b.BlockedMessages, &b.BlockedKeys)
	}
}

func consumerInForm(c *statusz.Consumer) {
	c.Source = plain(c.Source, maxPlace)
	counts(&c.AppliedTotal, &c.DuplicatesTotal)
	c.AppliedPerSec, c.Parked, c.Gaps = count(c.AppliedPerSec), count(c.Parked), count(c.Gaps)
	c.BlockedKeys, c.DeadLetters = count(c.BlockedKeys), openCount(c.DeadLetters)
	if c.Lag != nil && c.Lag.Messages < 0 {
		c.Lag = nil
	}
}

// maxCount keeps sums of many workers within their type.
const maxCount = math.MaxInt64 / 1024

func counts(all ...*int64) {
	for _, n := range all {
		*n = min(max(*n, 0), maxCount)
	}
}

// count leaves out a number that cannot be one.
func count(n *int64) *int64 {
	if n == nil || *n < 0 || *n > maxCount {
		return nil
	}
	return n
}

func openCount(c *statusz.Count) *statusz.Count {
	if c == nil || c.Open < 0 || c.Open > maxCount {
		return nil
	}
	return c
}

// plain cuts a text and takes out what is no text.
func plain(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	return shorten(s, n)
}
