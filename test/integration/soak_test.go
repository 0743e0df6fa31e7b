package integration

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// soakVariable says for how long the soak runs, and soakSeed with what chances: `make soak` sets both.
const (
	soakVariable = "POSTRIDER_SOAK"
	soakSeed     = "POSTRIDER_SOAK_SEED"
	soakDefault  = time.Minute
)

const (
	soakWriters = 3
	// recovery bounds how long nothing may move after a fault, on a busy machine.
	recovery = 4 * time.Minute
	// longest is of a silence or a slow network: longer than a lease and than a broker waits for an acknowledgement.
	longest  = leaseDuration + 3*time.Second
	slowness = 40 * time.Millisecond
)

// database is a server that lines share: one of them at a time kills it.
type database struct {
	*local.Postgres
	turn sync.Mutex
}

type databases struct{ orders, billing *database }

// line is a bank over one broker, with two relays and two consumers. The first of each reaches its database by a proxy.
type line struct {
	*bank
	carrier

	databases *databases
	random    *rand.Rand
	ordersNet *testkit.Faulty
	inboxNet  *testkit.Faulty
	relays    [2]*worker
	consumers [2]*worker
	relayOf   [2]config.Relay
	inboxOf   [2]config.Consumer
}

// TestSoak lets three lines trade, one over each broker, while one thing after another breaks in each; whatever broke
// heals, and messages move again before the next does. In the end the books balance, `postrider verify` has nothing to
// say, and no message was given up.
func TestSoak(t *testing.T) {
	t.Parallel()
	duration, seed := soakFor(t)
	t.Logf("%s, seed %d", duration, seed)
	d := &databases{
		orders:  &database{Postgres: testkit.PostgresServer(t, local.PostgresConfig{})},
		billing: &database{Postgres: testkit.PostgresServer(t, local.PostgresConfig{})},
	}
	var lines []*line
	for _, prepare := range []func(*testing.T, bankOptions) (*bank, carrier){overNATS, overKafka, overRabbitMQ} {
		l := newLine(t, d, prepare)
		l.random = rand.New(rand.NewPCG(seed, uint64(len(lines))))
		l.begin()
		lines = append(lines, l)
	}
	over := make(chan struct{})
	time.AfterFunc(duration, func() { close(over) })
	var all errgroup.Group
	for _, l := range lines {
		all.Go(func() error { return l.soak(over) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		l.settled()
	}
}

func soakFor(t *testing.T) (duration time.Duration, seed uint64) {
	t.Helper()
	duration, seed = soakDefault, 1
	var err error
	if text := os.Getenv(soakVariable); text != "" {
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakVariable, err)
		}
	}
	if text := os.Getenv(soakSeed); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", soakSeed, err)
		}
	}
	return duration, seed
}

// soak breaks one thing after another while writers trade, until the time is over.
func (l *line) soak(over <-chan struct{}) error {
	var writers sync.WaitGroup
	defer writers.Wait()
	for w := range soakWriters {
		writers.Go(func() { l.tradeOn(over, w) })
	}
	struck := make(map[string]int)
	for faults := l.faults(); !isOver(over); l.moment(2 * time.Second) {
		f := faults[l.random.IntN(len(faults))]
		l.t.Logf("%s %s: %s", time.Now().Format(time.TimeOnly), l.name, f.name)
		if err := f.strike(); err != nil {
			return fmt.Errorf("%s: %s: %w", l.name, f.name, err)
		}
		struck[f.name]++
		if !l.moves(over) {
			return fmt.Errorf("%s: no message moves after this: %s", l.name, f.name)
		}
	}
	l.t.Logf("%s: %v", l.name, struck)
	return nil
}

func isOver(over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
	}
}

// moves waits until another message has its effect, and says whether one has.
func (l *line) moves(over <-chan struct{}) bool {
	before, late := l.last(), time.After(recovery)
	for l.last() <= before {
		select {
		case <-late:
			return false
		case <-over:
			return true
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

// last is the highest entry of the ledger, or 0 while its database is down.
func (l *line) last() (entry int64) {
	row := l.billing.Pool().QueryRow(l.t.Context(), "SELECT coalesce(max(entry), 0) FROM ledger")
	if row.Scan(&entry) != nil {
		return 0
	}
	return entry
}

// settled asks the oracle, once everything has arrived.
func (l *line) settled() {
	l.t.Helper()
	sales := testkit.Value[int](l.orders.DB, "SELECT count(*) FROM sale")
	testkit.Eventually(l.t, recovery, fmt.Sprintf("all of %d sales have arrived", sales), func() bool {
		return l.entries() >= sales
	})
	l.balanced()
	for _, p := range []*place{l.orders, l.billing} {
		if n := testkit.Value[int](p.DB, "SELECT count(*) FROM message_failure"); n > 0 {
			l.t.Errorf("%d healthy messages were given up", n)
		}
	}
	l.t.Logf("%s: %d sales", l.name, sales)
}

// begin starts the workers.
func (l *line) begin() {
	l.t.Helper()
	l.ordersNet, l.inboxNet = testkit.Proxy(l.t, l.orders.Addr()), testkit.Proxy(l.t, l.billing.Addr())
	for i := range l.relays {
		l.relayOf[i], l.inboxOf[i] = l.relay, l.consumer
		if i == 0 {
			through(l.t, &l.relayOf[i].Source, l.ordersNet)
			through(l.t, &l.inboxOf[i].Inbox.Postgres, l.inboxNet)
		}
		l.relays[i], l.consumers[i] = l.startRelay(l.relayOf[i]), l.startConsumer(l.inboxOf[i])
	}
}

// through has a database reached by a proxy.
func through(t *testing.T, cfg *config.Postgres, proxy *testkit.Faulty) {
	t.Helper()
	host, port, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Hosts, cfg.Port = []string{host}, int32(n)
}

// tradeOn makes sales until the time is over, as fast as the machine bears beside everything else.
func (l *line) tradeOn(over <-chan struct{}, writer int) {
	ctx := l.t.Context()
	random := rand.New(rand.NewPCG(7, uint64(writer)))
	for n := 0; !isOver(over); n++ {
		sales := make([]sale, 1+random.IntN(3))
		for i := range sales {
			sales[i] = sale{account: fmt.Sprintf("account-%d", random.IntN(accounts)), amount: 1 + random.Int64N(1000)}
		}
		_ = l.commit(ctx, n%7 == 6, sales...) // what a killed database did not take is no sale
		_ = pause(ctx)
	}
}

// fault is something that breaks and heals.
type fault struct {
	name   string
	strike func() error
}

func (l *line) faults() []fault {
	all := []fault{
		{"a relay is killed", func() error { return l.replaceRelay((*worker).kill) }},
		{"a relay is drained", func() error { return l.replaceRelay((*worker).drain) }},
		{"a consumer is killed", func() error { return l.replaceConsumer((*worker).kill) }},
		{"a consumer is drained", func() error { return l.replaceConsumer((*worker).drain) }},
		{"the broker is killed", func() error { return l.restart(l.server) }},
		{"the outbox's database is killed", func() error { return l.restartDatabase(l.databases.orders) }},
		{"the inbox's database is killed", func() error { return l.restartDatabase(l.databases.billing) }},
	}
	all = append(all, l.onTheWay("the outbox's database", l.ordersNet)...)
	all = append(all, l.onTheWay("the inbox's database", l.inboxNet)...)
	if l.proxy != nil {
		all = append(all, l.onTheWay("the broker", l.proxy)...)
	}
	return all
}

// onTheWay are the faults of a network.
func (l *line) onTheWay(to string, proxy *testkit.Faulty) []fault {
	passing := func(begin, end func()) func() error {
		return func() error {
			begin()
			l.moment(longest)
			end()
			return nil
		}
	}
	return []fault{
		{"connections to " + to + " are cut", passing(proxy.Reset, func() {})},
		{to + " is silent", passing(proxy.HalfOpen, proxy.Resume)},
		{to + " is slow", passing(func() { proxy.Delay(slowness) }, func() { proxy.Delay(0) })},
	}
}

// moment lets up to so much time pass.
func (l *line) moment(most time.Duration) {
	select {
	case <-time.After(time.Duration(l.random.Int64N(int64(most)))):
	case <-l.t.Context().Done():
	}
}

func (l *line) replaceRelay(end func(*worker)) error {
	i := l.random.IntN(len(l.relays))
	end(l.relays[i])
	l.relays[i] = l.startRelay(l.relayOf[i])
	return nil
}

func (l *line) replaceConsumer(end func(*worker)) error {
	i := l.random.IntN(len(l.consumers))
	end(l.consumers[i])
	l.consumers[i] = l.startConsumer(l.inboxOf[i])
	return nil
}

// kill ends a worker at once.
func (w *worker) kill() {
	w.Kill()
	w.drain()
}

func (l *line) restart(server killable) error {
	if err := server.Kill(l.t.Context()); err != nil {
		return err
	}
	l.moment(2 * time.Second)
	return server.Start(l.t.Context())
}

func (l *line) restartDatabase(d *database) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	return l.restart(d)
}
