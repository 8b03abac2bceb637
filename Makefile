.DEFAULT_GOAL := help
.PHONY: help build test lint fuzz full soak bench release

help: ## Show what there is to make
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-8s %s\n", $$1, $$2}'

build: ## Build ./turn
	go build -o turn ./cmd/turn

test: ## Run the gate: formatting, vet, lint, build, all tests
	./.ci/run

lint: ## Run vet and staticcheck
	go vet ./...
	go tool -modfile=tools/go.mod staticcheck ./...

full: ## Run the long tests at full size: a million rows, hundreds of kills, a million sessions, 20,000 programs of faults
	TURN_TEST_FULL=1 go test -count=1 -timeout 2h -v -run 'AnyMoment|Outlives|MemoryIsFlat|Quickly' ./cmd/turn
	TURN_TEST_FULL=1 go test -count=1 -timeout 1h -v -run 'Sweep|Million' ./servers/internal/sessions
	TURN_TEST_FULL=1 go test -count=1 -timeout 2h -v -run 'Hostile|Invariants|Killed|Sockets' ./episode ./internal/journal

BENCHJSON ?= bench.json

bench: ## Measure what driving costs beside the servers, against the floor (needs Linux), and write BENCHJSON (bench.json)
	go run ./internal/bench -json $(BENCHJSON)

release: ## Build what is released of this commit into dist: static, for Linux on amd64 and arm64, with a bill of materials
	./.ci/release

SOAKTIME ?= 10m

soak: ## Run episodes with faults for SOAKTIME (10m), and count what is left
	go run ./internal/soak -for $(SOAKTIME)

FUZZTIME ?= 60s

fuzz: ## Run every fuzz target for FUZZTIME (60s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | sed 's/^func //' | while read -r target; do \
			echo "== $$dir $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$dir || exit 1; \
		done || exit 1; \
	done
