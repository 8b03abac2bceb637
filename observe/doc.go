// Package observe says what is told of the calls of an episode to those who count or
// trace them. The driver and its two clients tell it; they count nothing themselves.
package observe
