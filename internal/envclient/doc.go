// Package envclient is a caller of anyone's environment server: ours, or NeMo
// Gym's. It is the other end of package envserver.
//
// An attempt at a rollout is one POST /run, which is never sent twice once a
// connection was made: the server may be driving it. What comes back is a reply as
// the driver would give it. A reply that is none, a refusal and a broken
// connection are failures of the attempt like any other.
package envclient
