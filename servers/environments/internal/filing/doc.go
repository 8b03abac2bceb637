// Package filing reads company filings: a plain text that is laid out for people
// is taken apart into sections, paragraphs and tables, and figures and their units
// are understood as filings word them.
//
// A filing's text is blocks of lines with blank lines between them. The first
// block is the company's name and the filing's title, a line each. A block of one
// line that begins with a number and does not end as a sentence does is a
// section's heading. A block in which at least two lines have columns, which two
// spaces or a tab keep apart, is a table; lines above its columns are its caption.
// Every other block is a paragraph.
//
//	Northwind Shipping
//	Annual Report 2023
//
//	1. Income statement
//
//	In million euros
//	                      2023      2022
//	Revenue            2,415.3   2,288.0
package filing
