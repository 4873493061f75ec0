# make fleet   fresh machine: set up both environments and run phone packaging on simulated robots
# make test    fresh machine: set up and run the quick tests;  make test-all adds the slow ones
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JAX := .venv
REVERB := .venv-reverb

.PHONY: setup fleet test test-all bench lint clean
setup: $(JAX)/.ready $(REVERB)/.ready
	@.venv/bin/python -m launch.doctor

$(JAX)/.ready: requirements/jax.txt pyproject.toml
	@echo "setting up $(JAX) (about 1.3 GB on disk)"
	@test -d $(JAX) || $(PYTHON) -m venv $(JAX)
	@$(JAX)/bin/pip install -q --disable-pip-version-check -r requirements/jax.txt
	@$(JAX)/bin/pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(REVERB)/.ready: requirements/reverb.txt
	@echo "setting up $(REVERB) for the store (about 1.4 GB on disk)"
	@sh requirements/make_reverb_env.sh $(REVERB) $(PYTHON)

fleet: setup
	$(JAX)/bin/python -m launch.fleet --config=phone_packaging_state

test: setup
	$(JAX)/bin/python -m pytest -m "not slow" tests

test-all: setup
	$(JAX)/bin/python -m pytest tests

bench: setup
	$(JAX)/bin/python -m bench.all

lint: setup
	$(JAX)/bin/ruff check .
	$(JAX)/bin/ruff format --check .
	$(JAX)/bin/mypy

clean:
	rm -rf runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
