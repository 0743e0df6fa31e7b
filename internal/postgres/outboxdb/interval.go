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

// duration reads an interval that PostgreSQL made of two times or that interval wrote.
func duration(i pgInterval) time.Duration {
	const day = 24 * time.Hour
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*day + time.Duration(i.Months)*30*day
}
