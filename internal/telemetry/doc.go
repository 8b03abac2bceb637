// Package telemetry counts what an environment server does, for Prometheus.
//
// Labels have few values, whatever servers send: a failure kind that is not
// registered counts as "other".
package telemetry
