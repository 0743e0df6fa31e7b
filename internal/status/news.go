package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
)

// fewMessages is a backlog that, while all of it is younger than a look, only shows that messages pass through.
const fewMessages = 10

// figures are the parts of a status that move by themselves. All other parts are news whenever they change.
type figures struct {
	// passing counts messages on their way through.
	passing *int64
	// counts are told when they change by a tenth; so is what begins or ends.
	counts []*int64
	// rates are told when they change by a half; so is the begin and the end of work.
	rates []*int64
	// oldest are shown as ages, which grow while nobody writes.
	oldest []*metav1.Time
}

func (f *figures) addDeadLetters(d *v1alpha1.DeadLetterCount, rest **v1alpha1.DeadLetterCount) {
	if d == nil {
		return
	}
	f.counts = append(f.counts, d.Open)
	f.oldest = append(f.oldest, d.OldestTime)
	*rest = &v1alpha1.DeadLetterCount{}
}

// news compares figures with those that are stored. Both have the same ones: what is there or not is in the rest.
func (f figures) news(stored figures, facts Facts) bool {
	if f.passingNews(stored, facts) {
		return true
	}
	for i := range f.counts {
		if moved(stored.counts[i], f.counts[i], 0, 10) {
			return true
		}
	}
	for i := range f.rates {
		began := (value(stored.rates[i]) == 0) != (value(f.rates[i]) == 0)
		if began || moved(stored.rates[i], f.rates[i], 1, 2) {
			return true
		}
	}
	for i := range f.oldest {
		if aged(stored.oldest[i], f.oldest[i], facts) {
			return true
		}
	}
	return false
}

// passingNews leaves out the few messages that every look finds on their way.
func (f figures) passingNews(stored figures, facts Facts) bool {
	var floor int64
	if len(f.oldest) > 0 && (f.oldest[0] == nil || facts.Now.Sub(f.oldest[0].Time) < facts.Interval) {
		floor = fewMessages
	}
	return moved(stored.passing, f.passing, floor, 10)
}

// moved says whether a number has changed by more than a floor, and by one part in so many of what is stored.
func moved(was, is *int64, floor, part int64) bool {
	if was == nil || is == nil {
		return was != is
	}
	difference := max(*was-*is, *is-*was)
	return difference > floor && difference*part >= *was
}

// aged says whether the age that is shown, which grows by itself, misleads: it is more than twice too old or too young,
// beyond two looks.
func aged(was, is *metav1.Time, f Facts) bool {
	age := func(t *metav1.Time) time.Duration {
		if t == nil {
			return 0
		}
		return max(0, f.Now.Sub(t.Time))
	}
	shown, actual := age(was), age(is)
	return shown > 2*actual+2*f.Interval || actual > 2*shown+2*f.Interval
}
