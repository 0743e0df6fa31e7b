package relay

import (
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// memory is what a lane knows of its shard between two statements: which rows it has in hand, from where it
// must read, and which keys changed while a read was under way. It does no I/O and reads no clock.
//
// One claim is under way at most; settles and gate writes may end while it is. What such a claim says about a
// key that changed meanwhile may be older than the change, so its rows are read again instead.
type memory struct {
	unordered bool

	// server is when the server was started that this is known of.
	server time.Time
	// At or below floor no row can appear that the lane does not know; read is the highest position read.
	floor, read message.Position
	// note is the newest thing that will let the floor rise; claimNote is the note as it was when the claim
	// under way was sent, and only that claim may use it.
	note, claimNote note
	// waits counts the claims in a row that notes could not let the floor rise with; stall is what became of such a one, and
	// long are the transactions that held the floor back for so long.
	waits int
	stall *stall
	long  []uint64
	// from is the floor of the claim under way, which is worth something only while open run; rescan says that it reads from
	// the very start.
	from   message.Position
	open   []uint64
	rescan bool

	// inHand are the rows that were read and neither settled, held nor forgotten; left are those that were
	// settled or held since the claim under way was sent: it may still show them.
	inHand, left map[message.Position]struct{}
	// changing counts the gate writes under way by key; changed are the keys whose gate or floor changed since
	// the claim under way was sent.
	changing map[string]int
	changed  map[string]struct{}

	sent  sentKeys
	round round
}

// note says: reach had been read before transaction xid began. A writer takes its transaction id before its
// positions, so whoever may still write at or below reach has an id below xid, and a snapshot whose xmin has
// passed xid shows all there will ever be.
type note struct {
	reach message.Position
	xid   uint64 // 0: no note
}

// stall is for a transaction that writes and stays open for long. The floor cannot rise while it may still put rows
// anywhere above it, and each claim would pass over all that was settled since, which nothing can clean away meanwhile. But
// nothing can appear at or below reach either while all of those run that have run since before xid: open. So claims begin
// at reach, and the first one that sees that one of open has ended is not good: the next begins at the floor.
type stall struct {
	note
	open []uint64
}

// stallAfter is how many claims a note waits for xmin to pass it before those that still run are taken for long ones.
const stallAfter = 16

func newMemory(unordered bool) *memory {
	return &memory{
		unordered: unordered,
		inHand:    make(map[message.Position]struct{}),
		left:      make(map[message.Position]struct{}),
		changing:  make(map[string]int),
		changed:   make(map[string]struct{}),
	}
}

// key returns what holds up what: the ordering key, or the row itself where nothing is ordered.
func (m *memory) key(r *shard.Row) string { return keyOf(r, m.unordered) }

func keyOf(r *shard.Row, unordered bool) string {
	if unordered {
		return r.ID.String()
	}
	return r.OrderingKey
}

// begin returns the window of the next claim and starts to watch what changes while it is under way.
func (m *memory) begin(b Batch, rescan bool) shard.Window {
	clear(m.left)
	clear(m.changed)
	for key := range m.changing {
		m.changed[key] = struct{}{}
	}
	m.claimNote, m.rescan, m.from, m.open = m.note, rescan, m.low(), m.lowWhile()
	if rescan {
		m.from = 0 // of this claim alone: each one would pass over all dead rows until the floor has risen again
	}
	return shard.Window{
		Floor: m.from, Read: m.read,
		MaxMessages: b.MaxMessages, MaxBytes: b.MaxBytes,
		MaxBelow: len(m.inHand) + b.MaxMessages, Next: m.round.next,
	}
}

// low is a position at or below which no row can appear that the lane does not know, as far as it knows.
func (m *memory) low() message.Position {
	if m.stall != nil {
		return m.stall.reach
	}
	return m.floor
}

// lowWhile are the transactions that low is worth something only while they run.
func (m *memory) lowWhile() []uint64 {
	if m.stall != nil {
		return m.stall.open
	}
	return nil
}

// parked is what the common look has to know of the lane.
func (m *memory) parked(wake chan<- bool) parked {
	return parked{floor: m.low(), server: m.server, open: m.lowWhile(), wake: wake}
}

// complete says whether a claim shows all that may have appeared. It does not where a long transaction has ended, whose
// rows may lie below where the claim began: whatever has become of the stall since.
func (m *memory) complete(c shard.Claim) bool {
	if allRun(m.open, c.Running) {
		return true
	}
	if m.stall != nil {
		m.note, m.waits, m.stall = m.stall.note, 0, nil
	}
	return m.from <= m.floor
}

// allRun says whether all of some transactions are among those that run.
func allRun(open, running []uint64) bool {
	for _, id := range open {
		if !slices.Contains(running, id) {
			return false
		}
	}
	return true
}

// move is what a claim says of the server that answered it.
type move uint8

const (
	stays move = iota // the same as before: the claim is good
	// leaving: another one, while something of the one before is in hand or is being written. The claim is not good.
	leaving
	// arrived: another one, which is believed from now on. The claim is not good; the next one starts at the bottom.
	arrived
)

// moved says whether a claim is of another server than the one that everything here is known of: the database was restarted,
// restored to an older point or failed over to a copy that lacks the last of it. Such a server may give out positions
// again, so that a new row may appear at or below the floor, or where a row is in hand that it does not have. A connection
// that breaks tells the same mostly; but where a pooler is between, or none was in use, none does. atRest says that the lane
// publishes and writes nothing, also of keys that are due.
func (m *memory) moved(c shard.Claim, atRest bool) move {
	if m.server.IsZero() {
		m.server = c.Server
	}
	if m.server.Equal(c.Server) {
		return stays
	}
	m.distrust()
	if !atRest || len(m.inHand) > 0 {
		return leaving
	}
	m.server, m.read, m.long, m.sent, m.round = c.Server, 0, nil, sentKeys{}, round{} // it may give ids out again too
	return arrived
}

// noServer is when no server was started.
var noServer = time.Unix(0, 0)

// disbelieve says that the database shows an earlier state although the server may be the same: what is true is read anew, as
// from another server.
func (m *memory) disbelieve() { m.server = noServer }

// late returns the positions below what was read that the lane does not know, in order: rows that committed
// late, were set free, or were forgotten.
func (m *memory) late(c shard.Claim) []message.Position {
	var out []message.Position
	for _, p := range c.Below {
		if _, ok := m.inHand[p]; ok {
			continue
		}
		if _, ok := m.left[p]; !ok {
			out = append(out, p)
		}
	}
	return out
}

// lateRows are the late rows of a claim as far as they were fetched.
type lateRows struct {
	rows []shard.Row
	// cutAt is the position up to which nothing is missing, when not all were fetched; 0 when they were.
	cutAt message.Position
}

// taken is what a lane makes of a claim.
type taken struct {
	// ready are to be sent, in order; gated belong to keys that wait, and are to be held.
	ready, gated []shard.Row
	// more says that the shard has more rows than were taken.
	more bool
	// passed says that the claim found nothing, however much it passed over.
	passed bool
	// reordered counts rows that were found below a later row of their key that was sent.
	reordered int
}

// take makes a claim's rows the lane's. Rows are only ever taken as a prefix, by position, of what the snapshot
// shows beside the rows in hand: else a later row of a key could be sent while an earlier one is not known yet.
func (m *memory) take(c shard.Claim, late lateRows, maxMessages int) taken {
	rows, reach := prefix(c, late, maxMessages)
	m.rise(c, reach)
	if m.rescan {
		m.lower(reach) // what was left out below it is looked for again
	}
	before := m.read
	if n := len(rows); n > 0 {
		m.read = max(m.read, rows[n-1].Position)
	}
	if whole(c, late, maxMessages) {
		m.read = max(m.read, c.Look.Reached)
		m.round.look(c.Look, before, len(rows) > 0)
	} else {
		m.round = round{long: m.round.long}
	}
	t := taken{more: reach != everything, ready: rows[:0:len(rows)]} // in place: most claims are ready as a whole
	t.passed = len(rows) == 0 && c.Look.Long
	for i := range rows {
		r := &rows[i]
		if len(m.changed) > 0 {
			if _, ok := m.changed[m.key(r)]; ok {
				m.back(r.Position)
				t.more = true
				continue
			}
		}
		m.inHand[r.Position] = struct{}{}
		if r.Position < before && m.sent.after(r) {
			t.reordered++
		}
		if r.Gated {
			t.gated = append(t.gated, *r)
		} else {
			t.ready = append(t.ready, *r)
		}
	}
	return t
}

// rise lets the floor rise to what the claim's note says, or what claims begin at where others hold the floor back.
func (m *memory) rise(c shard.Claim, reach message.Position) {
	n := m.claimNote
	m.claimNote = note{}
	if n.xid == 0 || reach < n.reach {
		return
	}
	if c.Xmin > n.xid {
		m.floor, m.stall = max(m.floor, n.reach), nil
	} else {
		open := slices.DeleteFunc(slices.Clone(c.Running), func(id uint64) bool { return id > n.xid })
		m.waits++
		if known := len(open) > 0 && allRun(open, m.long); m.waits <= stallAfter && !known {
			return
		}
		m.stall, m.long = &stall{note: n, open: open}, open
	}
	m.waits = 0
	if m.note == n {
		m.note = note{}
	}
}

// lower puts the floor at a position, unless it is lower already.
func (m *memory) lower(p message.Position) {
	m.floor = min(m.floor, p)
	if m.stall != nil {
		m.stall.reach = min(m.stall.reach, p)
	}
}

// everything is the reach of a claim that left nothing out.
const everything = message.Position(math.MaxInt64)

// prefix returns the rows of a claim that may be taken, in order, and the position up to which no row of its
// snapshot is left out.
func prefix(c shard.Claim, late lateRows, maxMessages int) ([]shard.Row, message.Position) {
	rows, reach := late.rows, everything
	switch {
	case late.cutAt != 0:
		reach = late.cutAt
	case c.BelowCut:
		reach = c.Below[len(c.Below)-1]
	default:
		if len(rows) == 0 {
			rows = c.Rows
		} else {
			rows = append(slices.Clip(rows), c.Rows...)
		}
		switch n := len(c.Rows); {
		case c.Cut && n > 0:
			reach = c.Rows[n-1].Position
		case c.Cut:
			reach = c.Look.Stopped
		}
	}
	if len(rows) > maxMessages {
		rows = rows[:maxMessages]
		reach = rows[maxMessages-1].Position
	}
	return rows, reach
}

// settled notes that rows moved to the archive by transaction xid, before which reach had been read.
func (m *memory) settled(rows []shard.Row, xid uint64, reach message.Position) {
	for i := range rows {
		m.leave(rows[i].Position)
		m.sent.add(&rows[i])
	}
	m.wrote(xid, reach)
}

// wrote notes a transaction of this lane before which reach had been read. One note at a time: the floor follows a busy
// lane closely enough, and a note that were replaced all the time would never serve. A lane that only holds rows notes
// that too: each claim would look at all that it has held otherwise.
func (m *memory) wrote(xid uint64, reach message.Position) {
	if m.note.xid == 0 && xid != 0 {
		m.note = note{reach: reach, xid: xid}
	}
}

// held notes that a row is held in the database: its gate knows of it now.
func (m *memory) held(r *shard.Row) { m.leave(r.Position) }

func (m *memory) leave(p message.Position) {
	delete(m.inHand, p)
	m.left[p] = struct{}{}
}

// forget gives rows back that were read and neither settled nor held: they are read again, from below them.
func (m *memory) forget(rows []shard.Row) {
	for i := range rows {
		r := &rows[i]
		delete(m.inHand, r.Position)
		m.changed[m.key(r)] = struct{}{}
		m.back(r.Position)
	}
	if len(m.inHand) == 0 && !m.round.long {
		m.read = m.low() // nothing is known above it: whole rows from there
	}
}

// opened notes that a key's gate is gone and its rows, the lowest at first, are ready again.
func (m *memory) opened(key string, first message.Position) {
	m.changed[key] = struct{}{}
	if first != 0 {
		m.back(first)
	}
}

// back puts the floor below a position at which a row will appear that the lane does not know.
func (m *memory) back(p message.Position) {
	m.lower(p - 1)
	if m.note.reach >= p {
		m.note = note{}
	}
	if m.claimNote.reach >= p {
		m.claimNote = note{}
	}
}

// distrust is for a statement whose outcome nobody knows: it may have set rows free anywhere.
func (m *memory) distrust() {
	m.floor, m.note, m.claimNote, m.waits, m.stall = 0, note{}, note{}, 0, nil
}

// change notes that a gate write of these keys is under way; unchange that it has ended.
func (m *memory) change(keys []string) {
	for _, k := range keys {
		m.changing[k]++
		m.changed[k] = struct{}{}
	}
}

func (m *memory) unchange(keys []string) {
	for _, k := range keys {
		if m.changing[k]--; m.changing[k] <= 0 {
			delete(m.changing, k)
		}
	}
}

// maxSentKeys bounds each half of sentKeys.
const maxSentKeys = 4096

// sentKeys remembers the last settled position of the keys settled lately, to tell rows that were inserted
// below it: only a writer that does not serialise its keys does that. It serves a counter, so it may forget.
type sentKeys struct{ young, old map[string]message.Position }

func (s *sentKeys) add(r *shard.Row) {
	if r.AggregateVersion == 0 {
		return
	}
	if len(s.young) >= maxSentKeys || s.young == nil {
		s.young, s.old = make(map[string]message.Position, maxSentKeys), s.young
	}
	s.young[r.OrderingKey] = max(s.young[r.OrderingKey], r.Position)
}

// after says whether a later row of the row's key was settled.
func (s *sentKeys) after(r *shard.Row) bool {
	return r.AggregateVersion != 0 && max(s.young[r.OrderingKey], s.old[r.OrderingKey]) > r.Position
}
