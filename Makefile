# What a person types. The work is done by scripts/; each of them says at its head what it does.
# HUTCH_DATA_DIR (default ./.hutch) and HUTCH_LISTEN (default 127.0.0.1:3000) are read from the environment.

.DEFAULT_GOAL := help
.PHONY: help run build test conformance bench soak lint clean-sandboxes

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## set this machine up, compile, build the base template, and serve (as root)
	@exec scripts/run.sh

build: ## compile the server and the programs that run inside sandboxes
	@scripts/build.sh all

test: ## every test there is, from lints to end-to-end (as root)
	@scripts/test.sh

conformance: ## E2B's own suites against a server of its own (as root; SDK=checkout [CI=checkout of the code interpreter])
	@SDK="$(SDK)" CI="$(CI)" exec scripts/conformance.sh

bench: ## measure, next to the raw primitives (as root; ARGS="--size 100")
	@scripts/bench.sh $(ARGS)

soak: ## hold 200 command streams open for 5 minutes, every byte compared (as root; ARGS="--seconds 60 --seed 7")
	@scripts/soak.sh $(ARGS)

lint: ## formatting, clippy and shell checks
	@scripts/lint.sh

clean-sandboxes: ## remove what sandboxes of a stopped server left running (as root)
	@scripts/clean-sandboxes.sh
