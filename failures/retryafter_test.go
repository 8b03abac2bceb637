package failures_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/turn/failures"
)

func TestParseRetryAfter(t *testing.T) {
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, test := range []struct {
		name, value string
		want        time.Duration
	}{
		{"seconds", "7", 7 * time.Second},
		{"white space around", " 7 ", 7 * time.Second},
		{"leading zeros", "007", 7 * time.Second},
		{"now", "0", 0},
		{"a fraction", "1.5", 1500 * time.Millisecond},
		{"the cap", "600", 10 * time.Minute},
		{"past the cap", "601", 10 * time.Minute},
		{"absurd", "999999999", 10 * time.Minute},
		{"more than a number can hold", strings.Repeat("9", 400), 10 * time.Minute},
		{"a date", at(90 * time.Second), 90 * time.Second},
		{"a date, old form", now.Add(90 * time.Second).Format("Monday, 02-Jan-06 15:04:05 GMT"), 90 * time.Second},
		{"a date, C's form", now.Add(90 * time.Second).Format(time.ANSIC), 90 * time.Second},
		{"a date far off", at(24 * time.Hour), 10 * time.Minute},
		{"the last date", "Fri, 31 Dec 9999 23:59:59 GMT", 10 * time.Minute},
		{"this moment", at(0), 0},
		{"a date in the past", at(-time.Hour), 0},
		{"empty", "", 0},
		{"negative", "-5", 0},
		{"a plus sign", "+5", 0},
		{"words", "abc", 0},
		{"a unit", "5s", 0},
		{"NaN", "NaN", 0},
		{"infinity", "Inf", 0},
		{"an exponent", "1e9", 0},
		{"hexadecimal", "0x10", 0},
		{"dots", "..", 0},
		{"two dots", "1.2.3", 0},
		{"two values", "1, 2", 0},
		{"digits of another script", "٣", 0},
		{"half a date", "Fri, 31 Dec", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := failures.ParseRetryAfter(test.value, now); got != test.want {
				t.Errorf("ParseRetryAfter(%q) is %s, want %s", test.value, got, test.want)
			}
		})
	}
}
