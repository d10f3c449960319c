# Everything happens in virtual environments inside this folder.
#
#   make demo        trains on real images, evaluates, exports
#   make photos      from a folder of photos to a server, a browser and a phone,
#                    see docs/photos.md
#   make test        lints, runs the tests on TensorFlow and those of layers
#                    and models on JAX
#   make test-torch  runs the latter on PyTorch
#   make docs        makes the site, build/docs/index.html
#   make figures     draws the figures of the site anew; commit them
#   make constraints writes the newest versions that setup.py admits into
#                    constraints.txt; run the tests before you commit it
#   make clean       removes the environments

PYTHON ?= $(shell command -v python3.11 || command -v python3)
RUN = saved_models/digits
NAME = keras-vision-transformer
# Modules are compiled when they are imported: most never are.
INSTALL = pip install --quiet --no-compile --constraint constraints.txt
TORCH_TOOLS = pytest pytest-xdist scipy torch
# worksteal gives each process consecutive tests, so that the fixtures that the
# tests of a file share are made once.
PYTEST = -m pytest --numprocesses=auto --dist=worksteal --durations=10
# One process more than processors, because some tests wait for programs.
NUM_PROCESSES = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Tests on JAX, and those that use XLA on TensorFlow, spend most of their time
# on compiling small models.
FAST_COMPILING = --xla_backend_optimization_level=0 \
    --xla_llvm_disable_expensive_passes=true \
    --xla_cpu_parallel_codegen_split_count=1 \
    --xla_cpu_use_fusion_emitters=false
ANY_BACKEND = tests/layers tests/analysis tests/pretraining \
    tests/models/test_dense.py tests/models/test_dense_tuning.py \
    tests/models/test_running.py tests/weights/test_dense_writing.py \
    tests/weights/test_linear_heads.py \
    tests/models/test_text.py \
    tests/preprocessing tests/test_initialization.py tests/test_known.py \
    tests/models/test_lora.py tests/test_layer_decay.py \
    tests/weights/test_golden_answers.py tests/weights/test_text_towers.py \
    tests/test_old_files.py tests/test_backends_page.py

.PHONY: demo photos test test-torch docs figures constraints clean

# The data set of the demo is prepared in this folder, not in the user's home.
demo: export TFDS_DATA_DIR = $(CURDIR)/build/datasets
demo: .venv/train
	.venv/bin/python -m trainers.train --recipe=digits --run_dir=$(RUN)
	.venv/bin/python -m trainers.evaluate --run_dir=$(RUN)
	test -d $(RUN)/export/report || \
	    .venv/bin/python -m trainers.export_model --run_dir=$(RUN)

photos: .venv/train
	PATH="$(CURDIR)/.venv/bin:$$PATH" bash docs/examples/photos.sh

# A second thread of a process would take time from the others.
test: export TF_NUM_INTRAOP_THREADS=1
test: .venv/dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	XLA_FLAGS="$(FAST_COMPILING)" KERAS_BACKEND=tensorflow .venv/bin/python \
	    $(subst auto,$(NUM_PROCESSES),$(PYTEST))
	XLA_FLAGS="$(FAST_COMPILING)" KERAS_BACKEND=jax \
	    .venv/bin/python $(PYTEST) $(ANY_BACKEND)

# This environment has no TensorFlow, which shows that these tests do not need
# it. It has timm and transformers, with which some tests compare the models.
test-torch: .venv-torch/dev
	KERAS_BACKEND=torch .venv-torch/bin/python $(PYTEST:worksteal=loadfile) \
	    $(ANY_BACKEND) $(wildcard tests/weights/test_*peers*.py)

# The variable silences a notice of mkdocs about its future version.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

figures: .venv/docs
	.venv/bin/python docs/figures

.venv/train: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/$(INSTALL) --editable '.[train,serve]'
	touch $@

.venv/dev: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/$(INSTALL) --editable '.[dev]'
	touch .venv/train .venv/docs $@  # It has their packages too.

.venv/docs: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/$(INSTALL) --editable '.[docs]'
	touch $@

.venv-torch/dev: .venv-torch/tools setup.py
	.venv-torch/bin/$(INSTALL) --editable '.[peers,plots,text]'
	touch $@

# The larger part, which does not read setup.py as another installation may.
.venv-torch/tools: constraints.txt
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/$(INSTALL) $(TORCH_TOOLS)
	touch $@

# Installs both environments again without constraints; the second one gets the
# versions of the first. Suffixes such as `+cpu` are cut off: they name a build,
# which other machines may not have.
constraints:
	rm -rf build/constraints && mkdir -p build/constraints
	$(PYTHON) -m venv build/constraints/dev
	build/constraints/dev/bin/pip install --quiet '.[dev]'
	build/constraints/dev/bin/pip freeze --exclude $(NAME) \
	    > build/constraints/dev.txt
	$(PYTHON) -m venv build/constraints/torch
	build/constraints/torch/bin/pip install --quiet \
	    --constraint build/constraints/dev.txt \
	    '.[peers,plots,text]' $(TORCH_TOOLS) torch==2.13.0
	build/constraints/torch/bin/pip freeze --exclude $(NAME) \
	    > build/constraints/torch.txt
	echo "# Versions that the tests passed with; \`make constraints\` writes" \
	    "them anew." > constraints.txt
	sort --ignore-case --unique build/constraints/dev.txt \
	    build/constraints/torch.txt | sed 's/+.*//' >> constraints.txt

clean:
	rm -rf .venv .venv-torch build *.egg-info
