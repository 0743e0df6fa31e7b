package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/test/testkit"
)

// The model runs the real relay on a real PostgreSQL under everything that goes wrong: writers that commit late or roll
// back, a broker that refuses until budgets are spent, answers late, twice or not at all, or is not there, as a whole or
// in one of its parts, people who replay and discard dead letters and send published messages again, a database that
// fails any statement or loses its answer, processes that are killed, and processes that stand still until another has
// their shards and then go on. Afterwards every message must have arrived, the first time in the order of its key, and
// nothing may be left behind; and none may have been given up before its budget was spent, or tried beyond that.
//
// A mutation puts one named mistake into the relay's edges; then the model must find something wrong. Without that it
// would prove nothing.

// model is one run.
type model struct {
	*world
	seed      uint64
	keys      int
	unordered bool
	skip      bool // ordering.onDeadLetter: SkipMessage
	// mutate changes a process's store or broker; nil for the real rules.
	mutate mutation

	quiet  atomic.Bool // nothing goes wrong any more
	writes atomic.Int64
	tide   atomic.Int64 // rows that were waiting a moment ago
	judge  *orderJudge
	jury   *jury
	down   atomic.Pointer[string] // the part of the broker that takes nothing; nil: none
	late   sync.WaitGroup         // messages that arrive after their publish was given up
	counts struct{ crashes, freezes, rejects, unknowns, outages, partly, replays, discards, again atomic.Int64 }
}

// orderJudge watches what arrives for the first time out of order.
type orderJudge struct {
	mu     sync.Mutex
	seen   map[string]int64
	ids    map[message.ID]int
	firsts []message.Message // in the order in which each arrived first
	wrong  []string
	counts bool // versions of a key must arrive one after the other
}

func (j *orderJudge) arrived(m message.Message) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ids[m.ID]++
	if j.ids[m.ID] == 1 {
		j.firsts = append(j.firsts, m)
	}
	last := j.seen[m.OrderingKey]
	if j.counts && m.AggregateVersion > last+1 {
		j.wrong = append(j.wrong, fmt.Sprintf("%s: %d after %d", m.OrderingKey, m.AggregateVersion, last))
	}
	j.seen[m.OrderingKey] = max(last, m.AggregateVersion)
}

func (j *orderJudge) arrivals() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.ids)
}

func (j *orderJudge) mistakes() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.wrong...)
}

// modelBroker is one process's client of the broker.
type modelBroker struct {
	m       *model
	frozen  *freezer
	answers atomic.Int64

	mu     sync.Mutex
	random *rand.Rand
}

// Unit implements broker.Router.
func (*modelBroker) Unit(m *message.Message) string { return partOf(m.OrderingKey) }

// Units implements broker.Router.
func (*modelBroker) Units() []string { return []string{"even", "odd"} }

// Publish implements broker.Publisher with answers at random. A process that stands still has one message on the
// wire: it arrives whenever that process goes on, whatever its deadline says by then.
func (b *modelBroker) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got := make([]broker.Confirmation, len(batch))
	closed := make(map[string]bool)
	down := !b.m.quiet.Load() && b.roll() < 0.01
	if down {
		b.m.counts.outages.Add(1)
	}
	for i, msg := range batch {
		key := b.m.keyOf(&msg)
		onWire := b.frozen.wait(context.WithoutCancel(ctx))
		switch {
		case closed[key]:
			got[i] = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotSent}
			continue
		case down:
			got[i] = unavailable
		case ctx.Err() != nil && !onWire:
			got[i] = unknown
		default:
			got[i] = b.one(msg)
		}
		b.m.witness(&msg, got[i])
		b.answers.Add(1)
		closed[key] = got[i].Outcome != broker.Confirmed
	}
	return got
}

// keyOf returns what holds up what.
func (m *model) keyOf(msg *message.Message) string {
	if m.unordered {
		return msg.ID.String()
	}
	return msg.OrderingKey
}

// witness tells the jury of an answer.
func (m *model) witness(msg *message.Message, c broker.Confirmation) {
	part, key := partOf(msg.OrderingKey), m.keyOf(msg)
	switch c.Outcome {
	case broker.Confirmed:
		m.jury.gotThrough(part, key)
	case broker.Rejected, broker.Ambiguous, broker.Unknown:
		m.jury.failed(msg.ID, part, key, c.Outcome == broker.Rejected)
	case broker.Unavailable:
	}
}

// one answers for one message.
func (b *modelBroker) one(m message.Message) broker.Confirmation {
	x := b.roll()
	if b.m.quiet.Load() {
		x = 0
	}
	down := b.m.down.Load()
	if down != nil && *down == partOf(m.OrderingKey) {
		return partIsDown(&m, x)
	}
	switch {
	case x < 0.78, m.Type == message.SkippedType && x < 0.98: // a marker that were dropped would leave a hole
		b.m.judge.arrived(m)
		return broker.Confirmation{Outcome: broker.Confirmed, Position: "ORDERS@1"}
	case x < 0.80: // the broker keeps it twice
		b.m.judge.arrived(m)
		b.m.judge.arrived(m)
		return broker.Confirmation{Outcome: broker.Confirmed, Position: "ORDERS@1"}
	case x < 0.90:
		b.m.counts.rejects.Add(1)
		return rejected
	case x < 0.94:
		b.m.counts.rejects.Add(1)
		return broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied}
	case x < 0.96: // it arrived, and the answer was lost
		b.m.judge.arrived(m)
		b.m.counts.unknowns.Add(1)
		return unknown
	case x < 0.98: // it arrives when nobody waits for it any more
		wait := time.Duration(b.roll()*20) * time.Millisecond
		b.m.late.Go(func() {
			<-time.After(wait)
			b.m.judge.arrived(m)
		})
		b.m.counts.unknowns.Add(1)
		return unknown
	default:
		b.m.counts.unknowns.Add(1)
		return unknown
	}
}

// partIsDown is an answer of a part of the broker that takes nothing. None of them says so for sure.
func partIsDown(m *message.Message, x float64) broker.Confirmation {
	switch {
	case m.Type == message.SkippedType: // as in one
		return broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError}
	case x < 0.5:
		return unknown
	case x < 0.9:
		return broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied}
	default:
		return broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonBrokerError}
	}
}

// weather takes a part of the broker down now and then until ctx ends.
func (m *model) weather(ctx context.Context) {
	random := seeded(m.seed + 99)
	defer m.down.Store(nil)
	for rest(ctx, random, 100, 400) && !m.quiet.Load() {
		part := []string{"even", "odd"}[random.IntN(2)]
		m.counts.partly.Add(1)
		m.down.Store(&part)
		goesOn := rest(ctx, random, 100, 300)
		m.down.Store(nil)
		if !goesOn {
			return
		}
	}
}

func (b *modelBroker) roll() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.Float64()
}

// freezer makes a process stand still at whatever it does next with the outside, as SIGSTOP does.
type freezer struct {
	mu   sync.Mutex
	thaw chan struct{}
}

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thaw = make(chan struct{})
}

func (f *freezer) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.thaw)
	f.thaw = nil
}

// wait returns once the process may go on, and whether it stood still.
func (f *freezer) wait(ctx context.Context) bool {
	f.mu.Lock()
	thaw := f.thaw
	f.mu.Unlock()
	if thaw == nil {
		return false
	}
	select {
	case <-thaw:
	case <-ctx.Done():
	}
	return true
}

// member is one slot of the model: a process, its successors after crashes.
type member struct {
	m      *model
	index  uint64
	random *rand.Rand
	frozen *freezer
	client *modelBroker
	p      *process
}

func (mb *member) start(ctx context.Context) {
	m := mb.m
	mb.client = &modelBroker{m: m, frozen: mb.frozen, random: seeded(mb.random.Uint64())}
	o := options{
		config:    m.processConfig,
		publisher: mb.client,
		skip:      m.skip,
		wrap: func(s relay.Store) relay.Store {
			if m.mutate.store != nil {
				s = m.mutate.store(s)
			}
			return &troubledStore{Store: s, frozen: mb.frozen, quiet: &m.quiet, random: seeded(mb.random.Uint64())}
		},
	}
	if m.mutate.broker != nil {
		o.publisher = m.mutate.broker(mb.client)
	}
	mb.p = m.process(o)
	mb.p.run(ctx)
}

// live crashes and freezes the process now and then until ctx ends.
func (mb *member) live(ctx context.Context) {
	mb.start(ctx)
	defer func() { // the frozen one must be able to end
		mb.p.Crash()
		<-mb.p.done
	}()
	for mb.works(ctx) {
		if mb.m.quiet.Load() {
			continue
		}
		if mb.random.Float64() < 0.3 {
			mb.m.counts.freezes.Add(1)
			mb.frozen.freeze()
			mb.pause(ctx, 600, 1200) // the lease is over before the end
			mb.frozen.release()
			continue
		}
		mb.m.counts.crashes.Add(1)
		mb.p.Crash()
		<-mb.p.done
		if !mb.pause(ctx, 1, 100) {
			return
		}
		mb.start(ctx)
	}
}

// works waits until the process has done some work, or has found none for a while, and says whether the model goes on.
// It counts answers of the broker and not time, so that a slow machine sees as much of what goes wrong amid the work.
func (mb *member) works(ctx context.Context) bool {
	enough := mb.client.answers.Load() + 5 + mb.random.Int64N(80)
	for range 100 {
		if !mb.pause(ctx, 10, 30) {
			return false
		}
		if mb.client.answers.Load() >= enough {
			break
		}
	}
	return true
}

// pause waits for some milliseconds and says whether the model goes on.
func (mb *member) pause(ctx context.Context, least, most int) bool {
	return rest(ctx, mb.random, least, most)
}

func rest(ctx context.Context, random *rand.Rand, least, most int) bool {
	timer := time.NewTimer(time.Duration(least+random.IntN(most-least+1)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *model) processConfig(c *relay.Config) {
	c.Unordered = m.unordered
	c.LeaseDuration, c.LeaseMargin = 600*time.Millisecond, 100*time.Millisecond
	c.Batch = relay.Batch{
		MaxMessages: 12, MaxBytes: 1 << 20, PollInterval: 5 * time.Millisecond, PublishTimeout: 300 * time.Millisecond,
	}
	c.Backoff = retry.Backoff{Initial: 3 * time.Millisecond, Max: 30 * time.Millisecond}
	c.Budget = retry.Budget{MaxAttempts: modelAttempts, MaxElapsed: time.Hour}
}

// decider replays and discards dead letters until ctx ends: some at random while there is trouble, all afterwards.
func (m *model) decider(ctx context.Context) {
	random := seeded(m.seed + 77)
	desk := m.desk()
	for rest(ctx, random, 5, 30) {
		letters, err := desk.List(ctx, outboxdb.Filter{State: "Open", Limit: 50})
		if err != nil && ctx.Err() == nil {
			m.t.Errorf("decider: %v", err)
			return
		}
		if m.team == nil && !m.quiet.Load() && random.Float64() < 0.03 {
			m.again(ctx, desk, fmt.Sprintf("k%d", random.IntN(m.keys)))
		}
		for i := range letters {
			if m.quiet.Load() || random.Float64() < 0.3 {
				m.decide(ctx, desk, letters[i].ID, random.Float64() < 0.6)
			}
		}
	}
}

// again sends what is archived of a key once more.
func (m *model) again(ctx context.Context, desk *outboxdb.Desk, key string) {
	chosen, _, err := desk.Archived(ctx, outboxdb.Selection{Keys: []string{key}, Limit: 20})
	if err == nil {
		var done outboxdb.Republished
		done, err = desk.Republish(ctx, chosen, somebody)
		m.counts.again.Add(int64(done.Moved))
	}
	_, refused := errors.AsType[*outboxdb.RefusedError](err) // no relay has come up yet
	if err != nil && !refused && ctx.Err() == nil {
		m.t.Errorf("republish: %v", err)
	}
}

func (m *model) decide(ctx context.Context, desk *outboxdb.Desk, id int64, again bool) {
	count := &m.counts.discards
	var err error
	if again && m.mutate.replay != nil {
		m.mutate.replay(m, id)
	}
	if again {
		count, err = &m.counts.replays, desk.Replay(ctx, id, somebody, m.skip || m.unordered)
	} else {
		err = desk.Discard(ctx, id, somebody)
	}
	_, refused := errors.AsType[*outboxdb.RefusedError](err) // another of its key comes first
	switch {
	case err == nil:
		count.Add(1)
	case !refused && ctx.Err() == nil:
		m.t.Errorf("decide: %v", err)
	}
}

// enough says whether a run has seen as much as it must, however slow the machine: with less it shows nothing.
func (m *model) enough() bool {
	c := &m.counts
	return m.writes.Load() >= 200 && c.rejects.Load()+c.unknowns.Load() >= 50 &&
		c.replays.Load()+c.discards.Load() >= 4 && c.crashes.Load() >= 4 && c.freezes.Load() >= 1
}

// highTide is how many rows wait while writers go on: with many more, what is committed late lies far ahead of what is
// read, and most of a run is spent on what was left when nothing goes wrong any more.
const highTide = 60

// watch looks after the tide until the trouble is over, and ends it when it has lasted and enough has happened, or as soon
// as the run has shown a mistake.
func (m *model) watch(trouble time.Duration, over <-chan struct{}, end context.CancelFunc) {
	started := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		m.tide.Store(m.left())
		past := time.Since(started)
		if past > trouble && m.enough() || past > 6*trouble || n%10 == 0 && len(m.shown()) > 0 {
			end()
		}
	}
}

// writer writes transactions of several messages, late and rolled back ones among them, until the time is over.
func (m *model) writer(ctx context.Context, index uint64) {
	random := seeded(m.seed*100 + index)
	whole := context.WithoutCancel(ctx) // the time is over between transactions, not within one
	for rest(ctx, random, 0, 8) {
		if m.tide.Load() >= highTide {
			continue
		}
		err := pgx.BeginTxFunc(whole, m.Pool(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return m.writeSome(whole, tx, random)
		})
		if err != nil && !errors.Is(err, errRolledBack) && m.t.Context().Err() == nil {
			m.t.Errorf("writer: %v", err)
			return
		}
	}
}

var errRolledBack = errors.New("rolled back on purpose")

func (m *model) writeSome(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	key := fmt.Sprintf("k%d", random.IntN(m.keys))
	for range []int{1, 1, 3}[random.IntN(3)] {
		inner := tx
		savepoint := random.Float64() < 0.3
		if savepoint {
			var err error
			if inner, err = tx.Begin(ctx); err != nil {
				return err
			}
		}
		if _, err := m.write(ctx, inner, key); err != nil {
			return err
		}
		m.writes.Add(1)
		if savepoint && random.Float64() < 0.3 {
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
		} else if savepoint {
			if err := inner.Commit(ctx); err != nil {
				return err
			}
		}
	}
	if random.Float64() < 0.1 {
		rest(ctx, random, 5, 25)
	}
	if random.Float64() < 0.05 {
		return errRolledBack
	}
	return nil
}

// run lets everything happen for a while, and until enough has happened, then lets the relay come to rest. It returns
// what is wrong.
func (m *model) run(trouble, patience time.Duration) []string {
	m.t.Helper()
	m.judge = &orderJudge{
		seen: make(map[string]int64), ids: make(map[message.ID]int), counts: !m.unordered && m.team == nil,
	}
	m.jury = newJury()
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers, members sync.WaitGroup
	for i := range uint64(4) {
		writers.Go(func() { m.writer(writing, i) })
	}
	members.Go(func() { m.decider(ctx) })
	members.Go(func() { m.weather(writing) })
	members.Go(func() { m.watch(trouble, writing.Done(), stopWriting) }) //nolint:contextcheck // the test's own
	for i := range uint64(2) {
		mb := &member{m: m, index: i, random: seeded(m.seed*1000 + i), frozen: &freezer{}}
		members.Go(func() { mb.live(ctx) })
	}
	writers.Wait()
	m.quiet.Store(true)
	if len(m.shown()) == 0 {
		m.comeToRest(patience)
	}
	cancel()
	members.Wait()
	m.late.Wait()
	return m.wrong()
}

// comeToRest waits until nothing is left, or nothing moves for a while: what is left then is a mistake that wrong finds.
func (m *model) comeToRest(patience time.Duration) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	still := time.NewTimer(patience)
	defer still.Stop()
	for last := int64(-1); ; {
		left := m.left() + testkit.Value[int64](m.DB, m.names.SQL(`SELECT (SELECT count(*) FROM {outbox_gate})
			 + (SELECT count(*) FROM {message_failure} WHERE state IN ('Open', 'Replaying'))`))
		if left == 0 {
			return
		}
		if left != last {
			last = left
			still.Reset(patience)
		}
		select {
		case <-tick.C:
		case <-still.C:
			return
		}
	}
}

// shown returns the mistakes that show while a run goes on.
func (m *model) shown() []string {
	m.t.Helper()
	wrong := append(m.judge.mistakes(), m.jury.unjust(m.givenUp())...)
	if m.team != nil {
		return wrong
	}
	beyond := testkit.Value[int64](
		m.DB, `SELECT count(*) FROM message_outbox_published WHERE attempts >= $1`, modelAttempts)
	if beyond > 0 {
		wrong = append(wrong, fmt.Sprintf("%d rows tried beyond their budget", beyond))
	}
	return wrong
}

// wrong compares what the broker has with what was committed.
func (m *model) wrong() []string {
	m.t.Helper()
	wrong := m.shown()
	note := func(n int64, what string) {
		if n != 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", n, what))
		}
	}
	note(m.left(), "rows left")
	note(testkit.Value[int64](m.DB, m.names.SQL(`SELECT count(*) FROM {outbox_gate}`)), "gates left")
	note(testkit.Value[int64](m.DB, `SELECT count(*) FROM message_failure WHERE state IN ('Open', 'Replaying')`),
		"dead letters undecided")
	given := testkit.Value[int64](m.DB, `SELECT count(*) FROM message_failure WHERE state = 'Discarded'`)
	var written int64
	var published [][16]byte
	if m.team == nil {
		written, published = m.archivedOf(given, note)
	} else {
		written, published = m.settledOf(given, note)
	}
	m.judge.mu.Lock()
	defer m.judge.mu.Unlock()
	missing, repeats := int64(0), 0
	for _, id := range published {
		n := m.judge.ids[message.ID(id)]
		if n == 0 {
			missing++
		}
		repeats += max(n-1, 0)
	}
	note(missing, "published messages that never arrived")
	m.t.Logf("seed %d: %d messages, %d repeats, %d crashes, %d freezes, %d rejects, %d unknowns, %d outages, "+
		"%d outages of a part, %d replays, %d discards, %d sent again; wrong: %v",
		m.seed, written, repeats, m.counts.crashes.Load(), m.counts.freezes.Load(), m.counts.rejects.Load(),
		m.counts.unknowns.Load(), m.counts.outages.Load(), m.counts.partly.Load(), m.counts.replays.Load(),
		m.counts.discards.Load(), m.counts.again.Load(), wrong)
	return wrong
}

// givenUp returns the messages that became dead letters, with the last time they did.
func (m *model) givenUp() []sentence {
	m.t.Helper()
	rows, err := m.Pool().Query(m.t.Context(),
		`SELECT event_id::uuid, clock_timestamp() - last_failed_at FROM message_failure`)
	if err != nil {
		m.t.Fatalf("read the dead letters: %v", err)
	}
	now := time.Now()
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sentence, err error) {
		var id [16]byte
		var ago time.Duration
		err = row.Scan(&id, &ago)
		s.id, s.at = message.ID(id), now.Add(-ago)
		return s, err
	})
	if err != nil {
		m.t.Fatalf("read the dead letters: %v", err)
	}
	return out
}

// archivedOf looks at an outbox of our own: how many messages were written, and which are in the archive.
func (m *model) archivedOf(given int64, note func(int64, string)) (written int64, published [][16]byte) {
	m.t.Helper()
	note(m.orphans(), "orphans")
	note(testkit.Value[int64](m.DB, `SELECT count(*) - count(DISTINCT event_id) FROM message_outbox_published`),
		"rows archived twice")
	written = testkit.Value[int64](m.DB, `SELECT coalesce(sum(last), 0)::bigint FROM message_outbox_sequence`)
	published = testkit.Values[[16]byte](m.DB, `SELECT event_id FROM message_outbox_published`)
	markers := testkit.Value[int64](m.DB,
		`SELECT count(*) FROM message_outbox_published WHERE event_type = 'postrider.skipped'`)
	note(written-int64(len(published))+markers-given-m.left(), "rows neither waiting, archived nor discarded")
	return written, published
}

// settledOf looks at the team's own table, which has a version of each aggregate. What was published of a key came in
// the order of its versions: nothing fills the places of what was discarded.
func (m *model) settledOf(given int64, note func(int64, string)) (written int64, published [][16]byte) {
	m.t.Helper()
	note(testkit.Value[int64](m.DB, m.names.SQL(`SELECT count(*) FROM {outbox_failing}`)), "notes of failures left")
	written = testkit.Value[int64](m.DB, `SELECT coalesce(sum(version), 0)::bigint FROM aggregate`)
	published = testkit.Values[[16]byte](m.DB, m.names.SQL(`SELECT event_id FROM {outbox} WHERE status = 'published'`))
	note(testkit.Value[int64](m.DB, m.names.SQL(`SELECT count(*) FROM {outbox} WHERE status = 'failed'`))-given,
		"rows marked as dead letters that are not discarded")
	note(written-int64(len(published))-given-m.left(), "rows neither waiting, published nor discarded")
	kept := make(map[message.ID]bool, len(published))
	for _, id := range published {
		kept[message.ID(id)] = true
	}
	m.judge.mu.Lock()
	defer m.judge.mu.Unlock()
	last := make(map[string]int64)
	for _, first := range m.judge.firsts {
		if kept[first.ID] && first.AggregateVersion <= last[first.OrderingKey] {
			note(
				first.AggregateVersion,
				fmt.Sprintf("of %s arrived first after %d", first.OrderingKey, last[first.OrderingKey]),
			)
		}
		if kept[first.ID] {
			last[first.OrderingKey] = first.AggregateVersion
		}
	}
	return written, published
}

func TestModel(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		seed      uint64
		unordered bool
		skip      bool
		team      bool // layout StatusColumns
		options   []testkit.PostgresOption
	}{
		"per key, seed 1":                  {seed: 1},
		"per key, seed 2":                  {seed: 2},
		"per key, seed 3":                  {seed: 3},
		"unordered":                        {seed: 4, unordered: true},
		"a marker for each dead letter":    {seed: 6, skip: true},
		"per key, SERIALIZABLE by default": {seed: 5, options: []testkit.PostgresOption{testkit.Serializable()}},
		"a table of the team's own":        {seed: 7, team: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &model{seed: tc.seed, keys: 9}
			if tc.team {
				m.world = newTeamWorld(t, testkit.ClassicTable(), 3, tc.options...)
			} else {
				m.world = newWorld(t, 3, tc.options...)
			}
			m.unordered, m.skip = tc.unordered, tc.skip
			for _, mistake := range m.run(4*time.Second, 20*time.Second) {
				t.Error(mistake)
			}
		})
	}
}
