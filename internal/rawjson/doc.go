// Package rawjson takes a JSON object apart and puts one together without
// decoding its values.
//
// Most of what passes through this project is not ours to read: task data,
// model responses, verdicts with fields that only their reader knows. Decoding
// such a body and encoding it again costs time and, worse, changes it: large
// integers become floats, "1.0" becomes "1", "<" becomes "\u003c". So
// [ParseObject] validates the text in one pass and returns the members as
// slices of it, and an [ObjectWriter] builds a body that refers to such slices
// instead of copying them.
//
// What is JSON is decided by RFC 8259, strictly: the text is UTF-8, numbers are
// finite by construction (no NaN, no Infinity), and nesting ends at [MaxDepth],
// as in encoding/json. A lone surrogate escape ("\ud800") is legal and passes
// through; in Go strings made by this package it is kept as its three-byte
// form, so that two different names never become one.
package rawjson
