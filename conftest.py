"""What every test and doctest finds ready."""

import collections
import functools
import gc
import multiprocessing.util
import os
import pathlib
import shutil
import sys
import tempfile
import typing

import keras
import numpy as np
import pytest

import keras_vit
from tests import commands
from tests.shared import plain_graphs

ROOT = pathlib.Path(__file__).parent

# The folders of tests stay where pytest keeps them. Beside them TensorFlow and
# TFDS leave thousands of temporary files, which go when the process ends.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
SCRATCH = tempfile.mkdtemp(prefix="keras_vit_tests_")
# After multiprocessing's own folder in it, which has the priority -100.
multiprocessing.util.Finalize(
    None, shutil.rmtree, (SCRATCH, True), exitpriority=-200
)
os.environ["TMPDIR"] = tempfile.tempdir = SCRATCH

# What hypothesis remembers of earlier tests would stay in the checkout.
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(SCRATCH, "hypothesis")

# Data sets are prepared for the tests alone, not in the home of the user.
# TFDS reads the variable when it is imported.
os.environ["TFDS_DATA_DIR"] = os.path.join(SCRATCH, "datasets")

# TensorFlow asks of most values whether they are tensors, by a protocol whose
# members Python looks up each time.
typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)

# The trainers need TensorFlow; on another backend there is nothing to collect.
collect_ignore = (
    []
    if keras.backend.backend() == "tensorflow"
    else [
        "trainers",
        "tests/trainers",
        "tests/export",
        "tests/serving",
        "tests/preprocessing/test_decoding.py",
        "keras_vit/export",
        "keras_vit/preprocessing/decoding.py",
        "keras_vit/serving",
    ]
)

# Nor is there a need to test again what no backend computes: pictures and pages
# of arrays, and files.
if keras.backend.backend() != "tensorflow":
    collect_ignore += [
        f"tests/{name}.py"
        for name in (
            "analysis/test_callbacks",
            "analysis/test_gallery",
            "analysis/test_map_page",
            "analysis/test_page",
            "analysis/test_page_in_browser",
            "analysis/test_plots",
            "preprocessing/test_image_files",
            "preprocessing/test_settings",
        )
    ]

# The kernels of a backend import it.
collect_ignore += [
    f"keras_vit/layers/kernels_{backend}.py"
    for backend in ("tensorflow", "jax", "torch")
    if backend != keras.backend.backend()
]

# Compiling takes most of the time of JAX: each program once for all processes
# and runs. The commands that tests start do it as well.
JAX_CACHE = {
    "jax_compilation_cache_dir": str(ROOT / "build" / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in JAX_CACHE.items():
    os.environ.setdefault(name.upper(), str(value))

if keras.backend.backend() == "jax":
    import jax
    from jax._src.interpreters import mlir

    # With less care as well.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true"
        " --xla_cpu_parallel_codegen_split_count=1"
        " --xla_cpu_use_fusion_emitters=false",
    )
    for name, value in JAX_CACHE.items():
        jax.config.update(name, value)
    # Half of the time went into a new context of MLIR for each program. One
    # does for all programs of a process.
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

if keras.backend.backend() == "torch":
    import torch

    # Threads wait for work in a loop: beside the other processes that run
    # tests, small models take five times as long with them. The variable is
    # for the processes that tests start.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Two logical CPUs stand in for two GPUs under MirroredStrategy.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )


def pytest_collection_modifyitems(items):
    """Begin with the files of the tests that say how many seconds they take.

    The longest first: begun last, it would go on alone. A file stays in one
    piece, since its tests share fixtures.
    """
    seconds = collections.Counter()
    for item in items:
        for mark in item.iter_markers("slow"):
            seconds[item.path] = max(seconds[item.path], *mark.args, 0)
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish():
    """Spare the garbage collector what was imported: it never goes away."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.collect = functools.partial(collect_for_others, gc.collect)


def collect_for_others(collect, generation=2):
    """Collect garbage unless Keras or TensorFlow asks for it.

    They do after each layer that is quantised, each model that is forgotten
    and each TFLite file: a second each in a process of many tests. What is
    garbage is found by Python itself as well, a little later.
    """
    caller = sys._getframe(1).f_globals["__name__"]
    is_theirs = caller.startswith(("keras.", "tensorflow."))
    return 0 if is_theirs else collect(generation)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    """Let docstring examples use the public names without importing them."""
    names = {name: getattr(keras_vit, name) for name in keras_vit.__all__}
    doctest_namespace.update(names)
    doctest_namespace["np"] = np


@pytest.fixture
def subprocess_environment():
    """Return the environment for commands that a test runs as a user would."""
    return commands.environment()


@pytest.fixture
def without_xla(monkeypatch):
    """Let Keras train without XLA on TensorFlow, unless a test asks for it.

    Compiling the update takes longer than a few of them, and so does rewriting
    its graph. The contracts of the layers train with XLA, and
    tests/models/test_vision_transformer.py does.
    """
    if keras.backend.backend() != "tensorflow":
        yield
        return
    monkeypatch.setattr(
        keras.Model, "_resolve_auto_jit_compile", lambda model: False
    )
    with plain_graphs():
        yield


@pytest.fixture
def eagerly():
    """Compute without TensorFlow's graphs, except for those of the data.

    Tracing a training takes longer than a few updates of a small model.
    """
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def python():
    """Return a program to call in place of Python, see `commands.python`."""
    with commands.python() as program:
        yield program


@pytest.fixture
def forked(python, monkeypatch):
    """Let programs that are started by `sys.executable` be forks."""
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))
    return python
