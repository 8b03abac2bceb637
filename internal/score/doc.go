// Package score turns the rewards of a run into what a person asks of it: the mean
// with its interval, and pass@k. A sample that is masked or has failed is no zero;
// whoever wants it to be one adds it as one.
package score
