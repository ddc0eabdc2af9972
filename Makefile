# From a fresh machine with Python 3.11 or newer, a JDK 17 or newer and make (GNU make 3.81 will do):
# the first command makes .venv, later ones only look whether it is still right.

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all lowest coverage lint bench docs sbom audit lock image clean java

# -- the virtual environment -----------------------------------------------------------------------
#
# It is right if STAMP exists. The stamp is named after what .venv was made from, and after how much
# of it the target needs: `demo`, `test`, or all. It is taken away while pip works and comes back last,
# so nothing that was cut off is ever taken for whole.

PLACE := .venv/installed-$(shell { pwd; echo "$(PYTHON)"; } | cksum | tr -d ' ')
MADE := $(PLACE)-$(shell cat pyproject.toml constraints.txt | cksum | tr -d ' ')
COMMA := ,
ALONE = $(if $(filter-out $(1),$(MAKECMDGOALS)),,$(filter $(2),$(MAKECMDGOALS)))
NEEDS := $(if $(call ALONE,demo java,demo),demo,$(if \
	$(call ALONE,check coverage lint test,%),test,all))
EXTRAS := $(patsubst all,spark$(COMMA)dev,$(NEEDS:demo=spark))
MEGABYTES := $(if $(filter demo,$(NEEDS)),560,$(if $(filter test,$(NEEDS)),250,800))
IS_THERE = $(and $(wildcard .venv/bin/python),$(wildcard $(MADE)-$(1)))
STAMP := $(MADE)-$(if $(call IS_THERE,all),all,$(NEEDS))
ifneq ($(shell [ -x .venv/bin/python ] || echo gone),)
.PHONY: $(STAMP)
endif

# The first Python that is new enough; what it needs besides to make a virtual environment.
FIND_PYTHON = for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	"$$python" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); $(1); \
	print(sys.executable)' 2>/dev/null && break; done
NO_PYTHON = $(if $(PYTHON),$(PYTHON) is no Python 3.11 or newer,there is no Python 3.11 or newer on \
	the PATH); install one (Debian/Ubuntu: sudo apt-get install python3 python3-venv; macOS: brew \
	install python@3.12) or name one: make PYTHON=/path/to/python3
NO_VENV = $(shell $(call FIND_PYTHON,pass)) lacks the module ensurepip; install it \
	(Debian/Ubuntu: sudo apt-get install python3-venv) or name another Python: make PYTHON=/path/to/python3

# Java is asked for before anything is installed, also by make -j.
$(STAMP): $(if $(filter demo test-all bench,$(MAKECMDGOALS)),| java)
	@$(if $(shell $(call FIND_PYTHON,pass)),,$(error $(NO_PYTHON)))
	@$(eval base := $(shell $(call FIND_PYTHON,import ensurepip)))
	@$(if $(base),,$(error $(NO_VENV)))
	@exec 9<Makefile; \
	lock() { "$(base)" -c "import fcntl; fcntl.flock(9, $$1)" 2>/dev/null; }; \
	lock 'fcntl.LOCK_EX | fcntl.LOCK_NB' || { echo 'waiting for another make'; lock fcntl.LOCK_EX; }; \
	if [ -e $@ ] && [ -x .venv/bin/python ]; then exit 0; fi; \
	printf 'installing activedb[$(EXTRAS)] into .venv'; \
	if ls $(PLACE)-* >/dev/null 2>&1 && [ -x .venv/bin/python ]; then \
		there=$$(ls $(MADE)-* 2>/dev/null); rm -f .venv/installed-*; \
	else \
		printf ' (downloads about $(MEGABYTES) MB, takes a minute or two)'; \
		rm -rf .venv && "$(base)" -m venv .venv || exit 1; \
	fi; \
	( while sleep 2 && kill -0 $$$$; do printf .; done ) 9<&- 2>/dev/null & dots=$$!; \
	trap 'kill $$dots 2>/dev/null' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile \
		--constraint constraints.txt --editable '.[$(EXTRAS)]' >.venv/pip.log 2>&1 && touch $@ $$there || { \
		echo ' failed'; cat .venv/pip.log >&2; exit 1; }; \
	echo ' done'

# -- Java ------------------------------------------------------------------------------------------

# As Spark chooses it: JAVA_HOME if it is set, else the PATH.
JAVA_WILL_DO = "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | awk -F '[".]' \
	'/^[a-z]+ version "/ && ($$2 == 1 ? $$3 : $$2) + 0 >= 17 { print "yes" }'
NO_JAVA = Spark needs Java 17 or newer, and $(if $(JAVA_HOME),JAVA_HOME ($(JAVA_HOME)),the PATH) has \
	none; install it (Debian/Ubuntu: sudo apt-get install openjdk-17-jdk-headless; macOS: brew \
	install openjdk@17) or set JAVA_HOME to one

java:
	@$(if $(shell $(JAVA_WILL_DO)),,$(error $(NO_JAVA)))

# The tests wait more than they compute; each process has servers of its own.
TEST_PROCESSES ?= 3
# With TEST_MINUTES no test starts later than so many minutes from now, installation included.
TEST_UNTIL := $(if $(TEST_MINUTES),$(shell echo $$(($$(date +%s) + 60 * $(TEST_MINUTES)))),inf)

# -- what people run -------------------------------------------------------------------------------

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'PYTHON=python3.12          the Python to make .venv with; else the first that will do'
	@echo 'DEMO_ARGS="--events 5000"  options of activedb demo (--help lists them)'
	@echo 'PYTEST_ARGS="-k lockmgr"   options of pytest'
	@echo 'TEST_PROCESSES=4           run the tests in so many processes; else in 3'
	@echo 'TEST_MINUTES=70            no test begins later than that; else all are run'
	@echo 'TEST_SEED=drawn            the seed of random tests, or another one each time; else 1'
	@echo 'BENCH_ARGS=--json          options of the benchmark'

demo: java $(STAMP) ## Run the hospital ward through Spark and rules into Postgres
	@.venv/bin/activedb demo $(DEMO_ARGS)

PYTEST = ACTIVEDB_TEST_UNTIL=$(TEST_UNTIL) $(if $(TEST_SEED),ACTIVEDB_TEST_SEED=$(TEST_SEED)) \
	.venv/bin/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

check: lint ## Check style, types and imports, then run the quick tests that need no server
	$(PYTEST) -m 'not (long or spark or crash or server)' $(PYTEST_ARGS)

test: lint ## The same with all tests but the long ones
	$(PYTEST) -m 'not (long or spark or crash)' $(PYTEST_ARGS)

test-all: java lint ## The same with all tests; CI runs them for TEST_MINUTES=70
	$(PYTEST) $(PYTEST_ARGS)

# In an environment of its own, without what needs newer versions: dashboard, site and linters.
LOWEST = .venv/lowest
FOR_LOWEST = hypothesis mypy packaging psutil 'pytest>=9' pytest-timeout pytest-xdist

lowest: ## Run the tests of make test with the oldest libraries that pyproject.toml allows
	@"$(shell $(call FIND_PYTHON,import ensurepip))" -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
		--constraint constraints-lowest.txt --editable '.[columnar,otel,spark]' $(FOR_LOWEST)
	@$(LOWEST)/bin/python -m pip check
	$(PYTEST:.venv/%=$(LOWEST)/%) -m 'not (long or spark or crash)' \
		--ignore tests/dashboard --ignore tests/docs $(PYTEST_ARGS)

coverage: $(STAMP) ## Run the quick tests, as make check does, and list the lines that none of them runs
	@rm -f .coverage .coverage.*
	.venv/bin/python -m coverage run -m pytest -n $(TEST_PROCESSES) --dist worksteal \
		-m 'not (long or spark or crash or server)' $(PYTEST_ARGS)
	@.venv/bin/python -m coverage combine --quiet
	@.venv/bin/python -m coverage report

lint: $(STAMP) ## Check style, types and imports only
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy examples/*.py examples/streams/*.py
	.venv/bin/lint-imports
	.venv/bin/python -m tools.words

# The lock manager is measured compiled, too, where there is a C compiler.
COMPILED = .venv/compiled
COMPILE = ACTIVEDB_COMPILE=1 .venv/bin/python -m pip install --quiet --disable-pip-version-check \
	--no-deps --no-build-isolation --upgrade --target $(COMPILED) .

bench: java $(STAMP) ## Measure the lock manager, nested transactions, contention, rules, events, streams, the pipeline and the demo
	@$(COMPILE) || echo 'lockmgr cannot be compiled here' >&2
	@.venv/bin/python -m benchmarks.locks $$([ ! -d $(COMPILED) ] || echo --compiled $(COMPILED)) $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.nested $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.contention $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.rules $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.events $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.streams $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.pipeline $(BENCH_ARGS)
	@.venv/bin/python -m benchmarks.demo $(BENCH_ARGS)

docs: $(STAMP) ## Build the documents into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo 'open site/index.html'

sbom: $(STAMP) ## Write what activedb and its extras are made of to dist/activedb.cdx.json (CycloneDX)
	@.venv/bin/python -m tools.sbom dist/activedb.cdx.json

audit: $(STAMP) ## Look for known vulnerabilities in what is installed
	@.venv/bin/python -m tools.audit

lock: $(STAMP) ## Write constraints.txt anew, with the newest versions that pyproject.toml allows
	@.venv/bin/python -m tools.lock

image: ## Build a container image with activedb and Spark (needs docker or podman)
	@$(if $(shell command -v podman),podman,docker) build --file Containerfile --tag activedb .

# The server of .activedb outlives a process that was killed. One that is still used is left alone.
SERVER_IS_GONE = "$(shell $(call FIND_PYTHON,pass))" -c 'import fcntl, sys; \
	fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)' "$$home/server.lock" 2>/dev/null
END_UNUSED_SERVER = .venv/bin/python -c 'from pathlib import Path; \
	from activedb.store.server._embedded import EmbeddedServer; EmbeddedServer.start(Path(".activedb")).close()'

clean: ## Remove .venv, caches and the database in .activedb, whose server is stopped first
	@home=$$(cat .activedb/location 2>/dev/null || echo .activedb/postgres); \
	if [ -e "$$home/server.lock" ] && ! $(SERVER_IS_GONE); then \
		[ ! -x .venv/bin/python ] || $(END_UNUSED_SERVER); \
		$(SERVER_IS_GONE) || { echo 'the server of .activedb is in use, so nothing is removed;' \
			'end the programs that use it first' >&2; exit 1; }; \
	fi; \
	case $$home in /var/tmp/activedb-*) rm -rf "$$home";; esac; \
	rm -rf .venv .activedb .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .coverage*; \
	rm -rf build dist site; find . -name __pycache__ -type d -prune -exec rm -rf {} +
