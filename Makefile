PYTHON ?= .venv/bin/python

install:
	python3 -m venv .venv
	.venv/bin/pip install -e '.[dev]'

test:
	$(PYTHON) -m pytest -n auto

slow:
	$(PYTHON) -m pytest -m slow

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

docs:
	$(PYTHON) scripts/make_pictures.py
	$(PYTHON) scripts/draw_house.py
	$(PYTHON) scripts/draw_round.py
	$(PYTHON) scripts/list_round.py
	$(PYTHON) scripts/list_metrics.py
	$(PYTHON) scripts/judge_results.py

site:
	$(PYTHON) -m mkdocs build

.PHONY: install test slow lint docs site
