// Package retry decides what is tried again, when and how often (section 5 of
// the protocol). There are two layers and each call belongs to exactly one
// owner in each, so that a server never sees the product of two loops.
//
// Redispatch runs a whole episode again, as the next attempt, after a failure
// that is not terminal: [Policy.Next].
//
// A re-send repeats one call of one attempt: [Resend.Next]. Its [Rule] says when:
// a refused call is never sent again, save a close; a call whose connection
// failed is, unless the agent could run twice for it.
package retry
