# Every target is documented by the text after its `##`; `make` alone prints them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
MINORS := 4.0 4.1 4.2 4.3
PY := $(VENV)/bin/python
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' redis_state/_version.py)

# Maven: the one on PATH when it is 3.8 or newer, else the wrapper.
MVN = $(shell tools/find_maven.sh)
MVN_RUN = $(MVN) -B -ntp -q -Dstyle.color=never

JARS := $(foreach m,$(MINORS),redis_state/jars/redis-state-spark-$(m)_2.13-$(VERSION).jar)
JVM_POMS := jvm-adapter/pom.xml $(filter-out jvm-adapter/scalafmt/%,$(wildcard jvm-adapter/*/pom.xml))
JVM_MAIN := $(JVM_POMS) LICENSE NOTICE redis_state/options.json \
	$(wildcard redis_state/backend/scripts/*.lua) \
	$(shell find jvm-adapter/*/src/main jvm-adapter/*/scala-shims -type f 2>/dev/null)
JVM_TEST := $(shell find jvm-adapter/*/src/test* -type f 2>/dev/null)
JARS_STAMP := jvm-adapter/target/jars.stamp
JAR_STAMP := jvm-adapter/target/jar.stamp
TESTS_STAMP := jvm-adapter/target/test-classes.stamp
SCALAFMT := jvm-adapter/target/scalafmt-classpath.txt

.PHONY: help
help: ## Print this help
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sort \
		| awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

# ---- environment and build --------------------------------------------------------------------

.PHONY: build
build: $(VENV)/installed $(JARS_STAMP) ## Make the Python environment and the jars, one for each Spark minor

.PHONY: env
env: $(VENV)/installed ## Make the Python environment only

$(VENV)/installed: pyproject.toml tools/check_tools.sh
	tools/check_tools.sh "$(PYTHON)"
	test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	ln -sfn "$$($(PY) -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')/jars" \
		$(VENV)/pyspark-jars
	touch $@

# Spark's classes as a JVM keeps them: the Spark applications of the tests start faster.
CLASS_ARCHIVE := $(VENV)/spark.jsa
$(CLASS_ARCHIVE): $(VENV)/installed tools/class_archive.py
	$(PY) tools/class_archive.py $@

# An environment of another Spark minor: `make env-4.1` and so on.
$(VENV)-%/installed: pyproject.toml tools/check_tools.sh
	tools/check_tools.sh "$(PYTHON)"
	test -x $(VENV)-$*/bin/python || "$(PYTHON)" -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[completion,dashboard,demo,spark,test]' 'pyspark==$*.*'
	touch $@

.PHONY: env-4.0 env-4.1 env-4.2
env-4.0: $(VENV)-4.0/installed ## Make a second environment with pyspark 4.0 (optional)
env-4.1: $(VENV)-4.1/installed ## Make a second environment with pyspark 4.1 (optional)
env-4.2: $(VENV)-4.2/installed ## Make a second environment with pyspark 4.2 (optional)

$(JARS_STAMP): $(JVM_MAIN) $(VENV)/installed
	mkdir -p redis_state/jars $(@D)
	$(MVN_RUN) -f jvm-adapter/pom.xml -Drevision=$(VERSION) package -Dmaven.test.skip=true
	ls $(JARS) >/dev/null
	find redis_state/jars -name '*.jar' $(foreach jar,$(JARS),! -path $(jar)) -delete
	touch $@ $(JAR_STAMP)

# The jar of the Spark that is installed, alone.
$(JAR_STAMP): $(JVM_MAIN) $(VENV)/installed
	mkdir -p redis_state/jars $(@D)
	minor=$$($(PY) -c 'import pyspark; print(".".join(pyspark.__version__.split(".")[:2]))'); \
	$(MVN_RUN) -f jvm-adapter/pom.xml -Drevision=$(VERSION) -pl core,spark-$$minor package \
		-Dmaven.test.skip=true
	touch $@

$(TESTS_STAMP): $(JARS_STAMP) $(JVM_TEST)
	$(MVN_RUN) -f jvm-adapter/pom.xml -Drevision=$(VERSION) test-compile
	touch $@

$(SCALAFMT): jvm-adapter/scalafmt/pom.xml
	mkdir -p $(@D)
	$(MVN_RUN) -f jvm-adapter/scalafmt/pom.xml initialize

.PHONY: jvm-test-build
jvm-test-build: $(TESTS_STAMP)

.PHONY: redis
redis:
	@tools/ensure_redis.sh $(PY)

.PHONY: browser
browser: ## Make sure of a Chromium for the tests of the dashboard (as root may install chromium)
	@tools/ensure_chromium.sh

.PHONY: wheel
wheel: build ## Build the wheel, all jars inside, into dist/
	rm -rf build dist/*.whl
	$(PY) -m build --wheel --outdir dist .
	$(PY) tools/check_wheel.py dist/redis_state-$(VERSION)-py3-none-any.whl

.PHONY: chart
chart: $(VENV)/installed ## Complete the Helm chart, and render it for the tests (Helm on PATH, or Go)
	$(PY) tools/chart.py

IMAGE := redis-state:$(VERSION)
.PHONY: image
image: wheel ## Build the image of the command from the wheel and Debian packages (needs a Docker engine)
	$(PY) tools/image.py $(IMAGE) --wheel dist/redis_state-$(VERSION)-py3-none-any.whl

.PHONY: sbom
sbom: wheel ## Write bills of materials (CycloneDX) of the wheel and the jars into dist/
	tools/sbom.sh $(VERSION) $(MVN) $(MINORS)

.PHONY: audit
audit: wheel ## Look up what the wheel needs in PyPI's advisories
	tools/sbom.sh --audit $(VERSION) $(MVN)

# ---- tests ------------------------------------------------------------------------------------

.PHONY: test
test: build jvm-test-build redis browser $(CLASS_ARCHIVE) $(SCALAFMT) ## Run every suite; the last line sums them up (as root may install redis-server, chromium, docker.io)
	@$(PY) tools/run_tests.py

.PHONY: test-long
test-long: build jvm-test-build redis ## What takes longer; writes docs/reliability.md (hours; SUITES="NAME ...")
	@$(PY) tools/run_tests.py --long --write docs/reliability.md $(SUITES)

.PHONY: check
check: test ## Format, lint, types, tests and JVM build: what CI runs

.PHONY: lint
lint: $(VENV)/installed $(SCALAFMT) ## Format check, lint and types
	@$(PY) tools/run_tests.py lint

.PHONY: format
format: $(VENV)/installed $(SCALAFMT) ## Rewrite the sources in the one format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	tools/scalafmt.sh

.PHONY: unit
unit: $(VENV)/installed ## Unit tests: no server, no JVM
	@$(PY) tools/run_tests.py unit

.PHONY: jvm-test
jvm-test: build jvm-test-build redis $(SCALAFMT) ## Scala tests: core, and the contract on both Spark minors
	@$(PY) tools/run_tests.py jvm-core jvm-contract-4.2 jvm-contract-4.3 jvm-real-time

.PHONY: jvm-suite
jvm-suite: build jvm-test-build redis ## Spark's own state store suite, on Spark 4.2
	@$(PY) tools/run_tests.py jvm-suite

.PHONY: spark-test
spark-test: build redis $(CLASS_ARCHIVE) ## Streaming operators on pyspark, and applications of their own
	@$(PY) tools/run_tests.py spark spark-applications

.PHONY: compatibility
compatibility: build env-4.0 env-4.1 env-4.2 redis ## Every operator on every Spark minor; writes docs/compatibility.md
	@$(PY) tools/compatibility.py

.PHONY: container-test
container-test: build redis ## Tests against a Redis container
	@$(PY) tools/run_tests.py containers

.PHONY: servers
servers: $(VENV)/installed ## Bring Redis 6.2, 7.0, 8.0 and Valkey 8 for tests into a cache
	@$(PY) tools/servers.py

.PHONY: faults
faults: build redis ## Schedules, mutants, real queries: N=200000, SEED=185, KILLS=60, TIMES=10 (docs/reliability.md)
	@$(PY) -m tests.faults.oracle $(if $(N),--schedules $(N)) $(if $(SEED),--seed $(SEED)) $(FAULTS_ARGS)
	@$(if $(KILLS),$(PY) -m tests.faults.kills --runs $(KILLS) $(if $(SEED),--seed $(SEED)) $(FAULTS_ARGS))
	@$(if $(TIMES),$(PY) -m tests.faults.topologies --times $(TIMES))
	@$(if $(TIMES),$(PY) -m tests.faults.topologies --times $(TIMES) --queries)

.PHONY: system
system: build jvm-test-build redis ## Schedules over whole processes, and their mutants: N=20000, SEED=185 (docs/reliability.md)
	@$(PY) -m tests.faults.system $(if $(N),--schedules $(N)) $(if $(SEED),--seed $(SEED)) $(SYSTEM_ARGS)

# ---- demo and benchmark -----------------------------------------------------------------------

.PHONY: demo
demo: $(JAR_STAMP) redis ## A streaming job that is killed half way and still ends right (3 minutes; as root may install redis-server)
	@$(PY) -m redis_state.demo

.PHONY: bench
bench: build jvm-test-build redis ## Compare with Spark's own providers; all tables (an hour)
	@$(PY) -m tests.bench $(BENCH_ARGS)
	@$(PY) -m tests.bench.python_store $(BENCH_ARGS)
	@$(PY) -m tests.bench.map_partitions $(BENCH_ARGS)
	@$(PY) -m tests.bench.operators $(BENCH_ARGS)
	@$(PY) -m tests.bench.processors $(BENCH_ARGS)
	@$(PY) -m tests.bench.reader $(BENCH_ARGS)
	@$(PY) -m tests.bench.beside $(BENCH_ARGS)
	@$(PY) -m tests.bench.live_state $(BENCH_ARGS)
	@$(PY) -m tests.bench.time_to_live $(BENCH_ARGS)
	@$(PY) -m tests.bench.uncommitted $(BENCH_ARGS)
	@$(PY) -m tests.bench.fork $(BENCH_ARGS)
	@$(PY) -m tests.bench.moving $(BENCH_ARGS)
	@$(PY) -m tests.bench.real_time $(BENCH_ARGS)
	@$(PY) -m tests.bench.dashboard $(BENCH_ARGS)

.PHONY: bench-quick
bench-quick: build jvm-test-build redis ## The same in under 5 minutes
	@$(PY) -m tests.bench --quick $(BENCH_ARGS)

.PHONY: site
site: $(VENV)/installed ## Build the pages of docs/ as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

.PHONY: clean
clean: ## Remove what was built, the environments included
	rm -rf $(VENV) $(VENV)-4.* build dist redis_state/jars *.egg-info jvm-adapter/target \
		jvm-adapter/*/target .pytest_cache .mypy_cache .ruff_cache .hypothesis
