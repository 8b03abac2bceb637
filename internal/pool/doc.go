// Package pool makes the connections of those who call Gym servers: the driver, and
// the agent server's kit where it calls tools (section 6 of the protocol).
package pool
