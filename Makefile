# Everything happens in virtual environments inside this folder.
#
#   make demo   trains on real images, evaluates, exports
#   make test   lints and runs the tests

PYTHON ?= $(shell command -v python3.11 || command -v python3)
RUN = saved_models/digits

.PHONY: demo test test-torch clean

demo: .venv/train
	.venv/bin/python -m trainers.train --recipe=digits --run_dir=$(RUN)
	.venv/bin/python -m trainers.evaluate --run_dir=$(RUN)
	.venv/bin/python -m trainers.export_model --run_dir=$(RUN)

test: .venv/dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	KERAS_BACKEND=tensorflow .venv/bin/pytest
	KERAS_BACKEND=jax .venv/bin/pytest $(BACKEND_NEUTRAL)

# PyTorch has an environment of its own: it is large, and it and TensorFlow
# are not loaded side by side.
test-torch: .venv-torch/dev
	KERAS_BACKEND=torch .venv-torch/bin/pytest $(BACKEND_NEUTRAL)

BACKEND_NEUTRAL = tests/layers tests/models tests/test_preprocessing.py keras_vit/layers keras_vit/models keras_vit/preprocessing.py

.venv/train: setup.py
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --editable '.[train]'
	touch $@

.venv/dev: setup.py
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-torch build *.egg-info
