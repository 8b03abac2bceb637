// Package progress tells a person how a dataset run gets on: one live line on a
// terminal, a plain line now and then elsewhere.
package progress
