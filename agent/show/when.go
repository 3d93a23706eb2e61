package show

import (
	"strconv"
	"strings"
	"time"

	"mesh/shared/refusal"
)

// ParseTime reads a time as a person gives it, against now, whose zone is the reader's: "now", an age such as
// "10m", "36h" or "3d", "22:00", "yesterday 22:00", "2026-11-30", "2026-11-30 22:00", or RFC 3339. A time to
// come is refused.
func ParseTime(text string, now time.Time) (time.Time, error) {
	t, ok := parseTime(strings.TrimSpace(text), now)
	const do = `give an age such as "10m" or "3d", "yesterday 22:00", or 2006-01-02T15:04:05Z`
	switch {
	case !ok:
		return t, refusal.New("the time "+strconv.Quote(text), "it is not understood", do)
	case t.After(now):
		return t, refusal.New("the time "+strconv.Quote(text), "it is yet to come", do)
	}
	return t, nil
}

func parseTime(text string, now time.Time) (time.Time, bool) {
	if text == "now" {
		return now, true
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), true
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), true
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, true
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, true
		}
	}
	day := now
	if rest, ok := strings.CutPrefix(text, "yesterday"); ok {
		day, text = now.AddDate(0, 0, -1), strings.TrimSpace(rest)
		if text == "" {
			return day, true
		}
	} else {
		text = strings.TrimSpace(strings.TrimPrefix(text, "today"))
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			return time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()), true
		}
	}
	return now, false
}
