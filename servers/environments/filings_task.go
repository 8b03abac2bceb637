package environments

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/turn/servers/environments/internal/filing"
	"example.com/turn/servers/requests"
)

// defaultFigureTolerance lets a figure be rounded to three digits.
const defaultFigureTolerance = 0.01

func (room *readingRoom) readTask(fields *requests.Fields) (filingTask, error) {
	task := filingTask{data: fields.JSON(), figure: fields.Number("figure"), tolerance: defaultFigureTolerance}
	if fields.Has("company") {
		task.company = room.companyIn(fields)
	}
	if fields.Has("unit") {
		task.unit, _ = figureUnit(fields)
	}
	if fields.Has("tolerance") {
		task.tolerance = figureTolerance(fields)
	}
	task.budget = filingSeconds(fields, "time_budget_seconds")
	task.lifetime = filingSeconds(fields, "ttl_seconds")
	if fields.Has("unreadable") {
		task.unreadable = room.namesIn(fields, "unreadable")
	}
	return task, fields.Err()
}

func (room *readingRoom) companyIn(fields *requests.Fields) string {
	company := fields.NonEmpty("company")
	if companies := room.companies(); company != "" && !slices.Contains(companies, company) {
		fields.Fault("company", "value_error", fmt.Sprintf("there is no filing of %q; there are those of: %s", company, strings.Join(companies, ", ")))
	}
	return company
}

// figureTolerance refuses 1 and more, with which 0 would always be right: it is a
// percentage that was meant as such.
func figureTolerance(fields *requests.Fields) float64 {
	tolerance, ok := filingNumber(fields, "tolerance")
	if ok && (tolerance < 0 || tolerance >= 1) {
		fields.Fault("tolerance", "value_error", "Input should be at least 0 and less than 1: 0.01 is one percent")
	}
	return tolerance
}

// maxFilingSeconds is a year: more is a typing error, and much more is no time.Duration.
const maxFilingSeconds = 366 * 24 * 60 * 60

// filingSeconds is 0 when the field is not there.
func filingSeconds(fields *requests.Fields, name string) time.Duration {
	if !fields.Has(name) {
		return 0
	}
	seconds, ok := filingNumber(fields, name)
	if !ok {
		return 0
	}
	if seconds > maxFilingSeconds {
		fields.Fault(name, "less_than_equal", fmt.Sprintf("Input should be less than or equal to %d", maxFilingSeconds))
		return 0
	}
	span := time.Duration(max(seconds, 0) * float64(time.Second))
	if span == 0 {
		fields.Fault(name, "greater_than", "Input should be greater than 0")
	}
	return span
}

// filingNumber is a number that is there, and whether it is one: else that is noted, and
// nothing more is to be said of it.
func filingNumber(fields *requests.Fields, name string) (number float64, ok bool) {
	number = fields.Number(name)
	_, err := strconv.ParseFloat(string(fields.Value(name)), 64)
	return number, err == nil
}

// maxFigureUnit is how many characters a unit may have. Verdicts and snapshots repeat it.
const maxFigureUnit = 100

// figureUnit reads a unit, and returns it as it came too.
func figureUnit(fields *requests.Fields) (unit filing.Unit, text string) {
	text = fields.NonEmpty("unit")
	if text == "" {
		return filing.Unit{}, ""
	}
	if utf8.RuneCountInString(text) > maxFigureUnit {
		fields.Fault("unit", "string_too_long", fmt.Sprintf("String should have at most %d characters", maxFigureUnit))
		return filing.Unit{}, ""
	}
	unit, err := filing.ParseUnit(text)
	if err != nil {
		fields.Fault("unit", "value_error", fmt.Sprintf("the unit %q %v", text, err))
	}
	return unit, text
}
