package up

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/postrider/postrider/api/v1alpha1"
)

// unknown is what a table shows of a number that nobody knows: never 0.
const unknown = "<unknown>"

// view is what is shown at one moment.
type view struct {
	now       time.Time
	started   time.Time
	relays    []v1alpha1.OutboxRelay
	consumers []v1alpha1.InboxConsumer
}

// writeTable shows the resources with the columns that kubectl get shows, and what is wrong below.
func (v view) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if len(v.relays) > 0 {
		fmt.Fprintln(t, "OUTBOXRELAY\tREADY\tBACKLOG\tOLDEST\tDEAD\tREPLICAS\tDESTINATION\tAGE\tRATE")
		for i := range v.relays {
			fmt.Fprintln(t, strings.Join(v.relayRow(&v.relays[i]), "\t"))
		}
	}
	if len(v.consumers) > 0 {
		if len(v.relays) > 0 {
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t, "INBOXCONSUMER\tREADY\tLAG\tOLDEST\tPARKED\tGAPS\tDEAD\tREPLICAS\tSOURCE\tAGE\tRATE")
		for i := range v.consumers {
			fmt.Fprintln(t, strings.Join(v.consumerRow(&v.consumers[i]), "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, line := range v.trouble() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

// rows shows each resource as one line, for logs and pipes.
func (v view) rows() []string {
	var lines []string
	for i := range v.relays {
		r := &v.relays[i]
		row := v.relayRow(r)
		lines = append(lines, fmt.Sprintf("outboxrelay/%s ready=%s backlog=%s oldest=%s dead=%s replicas=%s rate=%s",
			row[0], row[1], row[2], row[3], row[4], row[5], row[8]))
	}
	for i := range v.consumers {
		row := v.consumerRow(&v.consumers[i])
		lines = append(lines, fmt.Sprintf("inboxconsumer/%s ready=%s lag=%s oldest=%s parked=%s gaps=%s dead=%s "+
			"replicas=%s rate=%s", row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[10]))
	}
	return lines
}

func (v view) relayRow(r *v1alpha1.OutboxRelay) []string {
	s := &r.Status
	backlog, oldest, rate := unknown, "", unknown
	if s.Backlog != nil {
		backlog = count(s.Backlog.Messages)
		if s.Backlog.Precision == v1alpha1.PrecisionAtLeast {
			backlog += "+"
		}
		oldest = v.age(s.Backlog.OldestMessageTime)
	}
	if s.Rates != nil {
		rate = count(s.Rates.PublishedPerSecond) + "/s"
	}
	return []string{
		r.Name, readyWord(s.Conditions), backlog, oldest, dead(s.DeadLetters), replicas(&s.WorkerStatus),
		s.Destination, v.upFor(), rate,
	}
}

func (v view) consumerRow(c *v1alpha1.InboxConsumer) []string {
	s := &c.Status
	lag, oldest, parked, gaps, rate := unknown, "", unknown, unknown, unknown
	if s.Lag != nil {
		lag, oldest = count(s.Lag.Messages), v.age(s.Lag.OldestMessageTime)
	}
	if s.Inbox != nil {
		parked, gaps = count(s.Inbox.Parked), count(s.Inbox.Gaps)
	}
	if s.Rates != nil {
		rate = count(s.Rates.AppliedPerSecond) + "/s"
	}
	return []string{
		c.Name, readyWord(s.Conditions), lag, oldest, parked, gaps, dead(s.DeadLetters), replicas(&s.WorkerStatus),
		s.Source, v.upFor(), rate,
	}
}

// trouble says why a resource is not ready, and what warns.
func (v view) trouble() []string {
	var lines []string
	say := func(kind, name string, conditions []metav1.Condition) {
		for _, c := range conditions {
			bad := c.Type == v1alpha1.ConditionReady && c.Status != metav1.ConditionTrue && c.Message != ""
			warns := c.Status == metav1.ConditionTrue && c.Message != "" && c.Type != v1alpha1.ConditionReady
			if bad || warns {
				lines = append(lines, fmt.Sprintf("%s/%s: %s: %s: %s", kind, name, c.Type, c.Reason, c.Message))
			}
		}
	}
	for i := range v.relays {
		say("outboxrelay", v.relays[i].Name, v.relays[i].Status.Conditions)
	}
	for i := range v.consumers {
		say("inboxconsumer", v.consumers[i].Name, v.consumers[i].Status.Conditions)
	}
	return lines
}

func (v view) upFor() string { return duration.HumanDuration(v.now.Sub(v.started)) }

func (v view) age(t *metav1.Time) string {
	if t == nil {
		return "-"
	}
	return duration.HumanDuration(max(0, v.now.Sub(t.Time)))
}

func count(n *int64) string {
	if n == nil {
		return unknown
	}
	return strconv.FormatInt(*n, 10)
}

func dead(c *v1alpha1.DeadLetterCount) string {
	if c == nil {
		return unknown
	}
	return count(c.Open)
}

func replicas(s *v1alpha1.WorkerStatus) string {
	if s.Replicas == nil {
		return unknown
	}
	return strconv.Itoa(int(*s.Replicas))
}

func readyWord(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
		return string(c.Status)
	}
	return string(metav1.ConditionUnknown)
}
