"""Fixtures of the tests of the trainers."""

import dataclasses
import functools
import shutil

import pytest
import tensorflow as tf
from absl import flags

from tests.serving.conftest import other_zoo, zoo  # noqa: F401
from tests.shared import made_once, plain_graphs
from trainers.data.datasets import open_dataset
from trainers.data.readers.tfds import Digits
from trainers.recipes.flags import define_recipe_flags, recipe_from_flags
from trainers.recipes.recipes import RECIPES
from trainers.training import trainer as trainer
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare


@pytest.fixture(scope="package", autouse=True)
def graphs_as_written():
    """Run graphs without TensorFlow's rewriting, which few updates repay.

    It takes a quarter of the time of a short training. The commands that the
    tests run in processes of their own rewrite their graphs as ever.
    """
    with plain_graphs():
        yield


FEW_UPDATES = {"training", "models", "evaluation"}
FEW_UPDATES |= {
    "test_data_check.py",
    "test_jax.py",
    "test_train.py",
    "test_paths.py",
    "test_sweep.py",
}
# Of the loop itself, and of what graphs are.
TRACED = {"test_flops.py", "test_interruptions.py", "test_loop.py"}


@pytest.fixture(scope="module", autouse=True)
def updates_one_by_one(request):
    """Compute without graphs where trainings have a few updates.

    Tracing them takes longer. See `graphs`.
    """
    is_short = not FEW_UPDATES.isdisjoint(request.path.parts)
    is_short &= request.path.name not in TRACED
    tf.config.run_functions_eagerly(is_short)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def graphs():
    """Trace functions nevertheless, as XLA and exports need it."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    yield
    tf.config.run_functions_eagerly(before)


@pytest.fixture(scope="package", autouse=True)
def digits_in_memory():
    """Read the digits from the disk once, not for each short training.

    The commands that the tests run in processes of their own read as ever.
    """
    read, records = Digits.as_dataset, {}

    def read_once(builder, split, decoders=None, **options):
        if decoders is None:  # Not as our reader reads.
            return read(builder, split, **options)
        key = str(builder.data_path), str(split)
        if key not in records:
            examples = read(builder, split, decoders=decoders, **options)
            count = int(examples.cardinality())
            with tf.init_scope():
                records[key] = next(iter(examples.batch(count)))
        return tf.data.Dataset.from_tensor_slices(records[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Digits, "as_dataset", read_once)
        yield


@pytest.fixture(autouse=True)
def runs_without_pictures(request, monkeypatch):
    """Leave out the pictures of runs, a quarter of the time of a short one.

    Those of tests with the fixture `pictures`, and of commands in processes of
    their own, are drawn as ever.
    """
    if "pictures" not in request.fixturenames:
        for name in ("draw_first_batch", "plot_learning_curve"):
            monkeypatch.setattr(trainer, name, lambda *arguments: None)


@pytest.fixture
def pictures():
    """Draw the pictures of runs."""


@pytest.fixture
def parse(monkeypatch):
    """Return a function from flags to the recipe that they choose."""
    values = flags.FlagValues()
    for kind in ("_string", "_integer", "_float", "_bool", ""):
        name = f"DEFINE{kind}"
        define = functools.partial(getattr(flags, name), flag_values=values)
        monkeypatch.setattr(flags, name, define)
    define_recipe_flags()

    def parse_words(*words):
        values.unparse_flags()
        values(["train", *words])
        return recipe_from_flags(values)

    return parse_words


@pytest.fixture(scope="session")
def digits():
    return open_dataset("digits")


@pytest.fixture(scope="session")
def recipe():
    """Return the digits recipe, cut down to one block and three updates."""
    return dataclasses.replace(
        RECIPES["digits"],
        model="mu/16",
        patch_size=2,
        total_steps=3,
        warmup_steps=0,
        batch_size=32,
        steps_per_loop=2,
        eval_split="test[:64]",
        peak_tflops=1.0,  # Not measured.
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the folder of a finished run of a few updates."""
    recipe = dataclasses.replace(
        RECIPES["digits"],
        model="mu/16",
        patch_size=2,
        total_steps=4,
        warmup_steps=1,
        batch_size=361,
        epochs_per_eval=1,
    )

    def train(folder):
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            prepare(recipe, str(folder / "run")).train()
        finally:
            tf.config.run_functions_eagerly(before)
        return folder / "run"

    return made_once(tmp_path_factory, "trained", train)


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """Return a finished run of a few updates, a copy for each file of tests."""
    folder = tmp_path_factory.mktemp("run") / "first"
    return RunFolder(shutil.copytree(trained, folder))
