package outboxdb

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// pgInterval is what pgx encodes as an interval, also inside of an array.
type pgInterval = pgtype.Interval

func interval(d time.Duration) pgInterval {
	return pgInterval{Microseconds: d.Microseconds(), Valid: true}
}
