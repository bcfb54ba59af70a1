# make demo | test | test-slow | test-slow-ci | docs | wheel | test-lowest | bench | check | format | clean. Each does its
# own set-up; a second run reinstalls nothing, but for wheel and test-lowest, which begin with empty environments.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO := build/demo
BUILD_TOOLS := scikit-build-core nanobind cmake ninja

.PHONY: demo test test-slow test-slow-ci docs wheel test-lowest bench check format clean

demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/thinwire train --method sylvie --against exact --out $(DEMO)
	$(BIN)/thinwire report $(DEMO) $(DEMO)/against --out $(DEMO)/report.html
	@echo "Open $(DEMO)/report.html in a browser. For commands of your own: . .venv/bin/activate"

# Long, and alone on the machine: full-graph training on emulated hosts (root, iproute2).
bench: $(READY)
	failed=; for case in benchmarks/cases/fullgraph-*.toml; do $(BIN)/thinwire bench $$case --save || failed="$$failed $$case"; done; \
	if [ -n "$$failed" ]; then echo "did not end (data not here?):$$failed"; exit 1; fi

# Most tests wait for processes to start or to be missed: two at a time. A file's tests stay together and in order.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# One at a time, on a machine with nothing else to do: some count seconds.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Those that other work beside them does not disturb.
test-slow-ci: $(READY)
	$(BIN)/python -m pytest -m "slow and not timed" -n 2 --dist loadfile

# The documentation as a site, with nothing in it that is loaded from elsewhere. A broken link is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html in a browser."

# A wheel without extras in an empty environment, every command and example from outside the repository.
wheel:
	.ci/wheel

test-lowest:
	.ci/wheel --lowest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror native/*.cpp native/*.h
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i native/*.cpp native/*.h

# torch first and by itself, so that nothing else can resolve another one. The native module must build here: a
# developer wants the compiler's error, not the fallback to the torch twins.
$(READY): pyproject.toml constraints.txt $(wildcard native/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "thinwire needs Python 3.11 or newer, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt $(BUILD_TOOLS)
	THINWIRE_REQUIRE_NATIVE=1 $(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e ".[dev,docs]"
	touch $@

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis
