// Package fulltext ranks short texts by how well they answer a query: an inverted
// index in memory with the BM25 formula of Robertson and Spärck Jones.
//
// It is made for some hundreds of passages that one session reads, is built anew
// with each, and is forgotten with it: there are no files, and nothing is deleted.
package fulltext
