package up

import (
	"cmp"
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
	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/status"
)

const (
	// unknown is what a table shows of a number that nobody knows: never 0.
	unknown = "?"
	// none is what a table shows where nothing waits.
	none = "-"

	// undefinedTable is the SQLSTATE of a table that is not there.
	undefinedTable = "42P01"
)

const (
	kindRelay    = "outboxrelay"
	kindConsumer = "inboxconsumer"
)

// view is what is shown at one moment.
type view struct {
	now       time.Time
	started   time.Time
	relays    []v1alpha1.OutboxRelay
	consumers []v1alpha1.InboxConsumer
	// embedded says that the servers are our own.
	embedded bool
}

// writeTable shows the resources with the columns that kubectl get shows.
func (v *view) writeTable(w io.Writer) error {
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
	return nil
}

// rows shows each resource as one line, for logs and pipes.
func (v *view) rows() []string {
	titles := make([]string, 0, len(v.relays)+len(v.consumers))
	words := make([]string, 0, cap(titles))
	longest := 0
	for i := range v.relays {
		r := v.relayRow(&v.relays[i])
		titles = append(titles, kindRelay+"/"+r[0])
		words = append(words, fmt.Sprintf("ready=%s backlog=%s oldest=%s dead=%s replicas=%s rate=%s",
			r[1], r[2], r[3], r[4], r[5], r[8]))
	}
	for i := range v.consumers {
		r := v.consumerRow(&v.consumers[i])
		titles = append(titles, kindConsumer+"/"+r[0])
		words = append(words, fmt.Sprintf("ready=%s lag=%s oldest=%s parked=%s gaps=%s dead=%s replicas=%s rate=%s",
			r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[10]))
	}
	for _, title := range titles {
		longest = max(longest, len(title))
	}
	lines := make([]string, len(titles))
	for i, title := range titles {
		lines[i] = fmt.Sprintf("%-*s %s", longest, title, words[i])
	}
	return lines
}

func (v *view) relayRow(r *v1alpha1.OutboxRelay) []string {
	s := &r.Status
	backlog, oldest, rate := unknown, unknown, unknown
	if s.Backlog != nil {
		backlog, oldest = count(s.Backlog.Messages), v.age(s.Backlog.OldestMessageTime)
		if s.Backlog.Precision == v1alpha1.PrecisionAtLeast && s.Backlog.Messages != nil {
			backlog += "+"
		}
	}
	if s.Rates != nil {
		rate = perSecond(s.Rates.PublishedPerSecond)
	}
	return []string{
		v.title(r), readyWord(s.Conditions), backlog, oldest, dead(s.DeadLetters), replicas(&s.WorkerStatus),
		cmp.Or(s.Destination, unknown), v.upFor(), rate,
	}
}

func (v *view) consumerRow(c *v1alpha1.InboxConsumer) []string {
	s := &c.Status
	lag, oldest, parked, gaps, rate := unknown, unknown, unknown, unknown, unknown
	if s.Lag != nil {
		lag, oldest = count(s.Lag.Messages), v.age(s.Lag.OldestMessageTime)
	}
	if s.Inbox != nil {
		parked, gaps = count(s.Inbox.Parked), count(s.Inbox.Gaps)
	}
	if s.Rates != nil {
		rate = perSecond(s.Rates.AppliedPerSecond)
	}
	return []string{
		v.title(c), readyWord(s.Conditions), lag, oldest, parked, gaps, dead(s.DeadLetters), replicas(&s.WorkerStatus),
		cmp.Or(s.Source, unknown), v.upFor(), rate,
	}
}

// title is a resource's name, with its namespace where there are several.
func (v *view) title(o metav1.Object) string {
	first := ""
	for i := range v.relays {
		first = cmp.Or(first, v.relays[i].Namespace)
		if v.relays[i].Namespace != first {
			return o.GetNamespace() + "/" + o.GetName()
		}
	}
	for i := range v.consumers {
		first = cmp.Or(first, v.consumers[i].Namespace)
		if v.consumers[i].Namespace != first {
			return o.GetNamespace() + "/" + o.GetName()
		}
	}
	return o.GetName()
}

// trouble says why a resource is not ready, and what warns.
func (v *view) trouble() []string {
	var lines []string
	say := func(title, database string, conditions []metav1.Condition) {
		ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
		if ready == nil {
			return
		}
		message := words(ready)
		switch {
		case message == "":
		case ready.Status != metav1.ConditionTrue:
			message += v.hint(ready, database)
			lines = append(lines, fmt.Sprintf("%s is not ready: %s: %s", title, ready.Reason, message))
		default: // paused, drained
			lines = append(lines, title+": "+message)
		}
		for i := range conditions {
			c := &conditions[i]
			if warns(c) && c.Message != ready.Message && !v.standsToReason(c) {
				name := c.Type
				if c.Status == metav1.ConditionFalse {
					name = c.Reason // the type says what should be
				}
				lines = append(lines, fmt.Sprintf("%s: warning: %s: %s", title, name, words(c)))
			}
		}
	}
	for i := range v.relays {
		r := &v.relays[i]
		say(kindRelay+"/"+v.title(r), r.Spec.Source.Postgres.Database, r.Status.Conditions)
	}
	for i := range v.consumers {
		c := &v.consumers[i]
		say(kindConsumer+"/"+v.title(c), c.Spec.Inbox.Postgres.Database, c.Status.Conditions)
	}
	return lines
}

// words are a condition's, without the reason that stands beside them.
func words(c *metav1.Condition) string { return strings.TrimPrefix(c.Message, c.Reason+": ") }

// warns says whether a condition tells of something that may hurt later.
func warns(c *metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionDeadLettersHealthy, v1alpha1.ConditionBacklogHealthy:
		return c.Status == metav1.ConditionFalse
	default:
		return c.Status == metav1.ConditionTrue && status.PresentWhileTrue(c.Type)
	}
}

// standsToReason says whether a warning is about the embedded servers, of which the start told, and not about the
// resource.
func (v *view) standsToReason(c *metav1.Condition) bool {
	return v.embedded && (c.Type == v1alpha1.ConditionInsecureTransport ||
		(c.Type == v1alpha1.ConditionTargetMayDiscard && c.Reason == string(broker.WarnFewReplicas)))
}

// hint says what mends a cause on a laptop that is mended otherwise in a cluster.
func (v *view) hint(c *metav1.Condition, database string) string {
	if v.embedded && c.Reason == v1alpha1.ReasonStatementInvalid && strings.Contains(c.Message, undefinedTable) {
		return "; --init " + database + "=FILE makes your service's own tables in the embedded database"
	}
	return ""
}

func (v *view) upFor() string { return duration.HumanDuration(v.now.Sub(v.started)) }

func (v *view) age(t *metav1.Time) string {
	if t == nil {
		return none
	}
	return duration.HumanDuration(max(0, v.now.Sub(t.Time)))
}

func count(n *int64) string {
	if n == nil {
		return unknown
	}
	return strconv.FormatInt(*n, 10)
}

func perSecond(n *int64) string {
	if n == nil {
		return unknown
	}
	return count(n) + "/s"
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
