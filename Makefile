# `make demo` and `make test` set up everything they need in .venv and reuse it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-ray test-sites lint bench sanitize clean

demo: $(VENV)/ready
	$(BIN)/pfedsim compare --methods local,fedavg,pfedsim --seeds 42,43,44 --out demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto
	@$(BIN)/python -c "import ray" 2>/dev/null || echo "skipped: tests with a real Ray cluster; make test-ray runs them"
	@$(BIN)/python -c "import nvflare" 2>/dev/null || echo "skipped: tests with a real NVIDIA FLARE; make test-sites runs them"

# Ray is heavy, so it has an environment of its own, on top of the other one.
test-ray: $(VENV)/ready
	$(BIN)/python -m venv $(VENV)-ray
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" > $(VENV)-ray/pth
	cp $(VENV)-ray/pth $$($(VENV)-ray/bin/python -c "import site; print(site.getsitepackages()[0])")/pfedsim.pth
	$(VENV)-ray/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-ray.txt
	$(VENV)-ray/bin/python -m pytest tests/engines/test_ray.py

# NVIDIA FLARE brings a web server and more, so it has one, too.
test-sites: $(VENV)/ready
	$(BIN)/python -m venv $(VENV)-sites
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" > $(VENV)-sites/pth
	cp $(VENV)-sites/pth $$($(VENV)-sites/bin/python -c "import site; print(site.getsitepackages()[0])")/pfedsim.pth
	$(VENV)-sites/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-sites.txt
	$(VENV)-sites/bin/python -m pytest tests/sites

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/pfedsim bench --out benchmarks

sanitize: $(VENV)/ready
	PYTHON=$(CURDIR)/$(BIN)/python sh src/pfedsim/backends/csrc/asan.sh

$(VENV)/ready: requirements.txt pyproject.toml setup.py paper/pyproject.toml $(wildcard src/pfedsim/backends/csrc/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt  # all are named: nothing to solve
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e paper
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-ray $(VENV)-sites build src/*.egg-info paper/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
