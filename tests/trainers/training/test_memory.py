"""The memory of a training, and how a batch fits into it."""

import dataclasses
import textwrap
import types

import keras
import numpy as np
import psutil
import pytest
from keras import layers

from keras_vit.models import VisionTransformer
from tests import commands
from tests.tiny import tiny_config
from tests.trainers.made import write_photos
from trainers.engine.strategies import make_engine
from trainers.optim.optimizers import make_optimizer
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipes import RECIPES
from trainers.training import memory as budget
from trainers.training.memory import (
    GATHERED_BYTES,
    Memory,
    available_bytes,
    describe_memory,
    describe_shortage,
    estimate_memory,
    estimate_training_memory,
    has_batch_statistics,
    held_bytes,
    least_available_bytes,
    plan_memory,
    warn_of_shortage,
)
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare


def model_of(*stack, shape=(8, 6, 4)):
    return keras.Sequential([keras.Input(shape), *stack])


def chain(depth, width=64):
    """Return a model whose every layer keeps its output for the way back."""
    stack = [layers.Dense(width, "tanh") for _ in range(depth)]
    return model_of(layers.Flatten(), *stack, shape=(8, 8, 1))


def estimate(model, batch_size, optimizer="adamw", **choices):
    parts = choices.pop("accumulation_steps", 1)
    optimizer = make_optimizer(
        optimizer, model.trainable_variables, 0.1, **choices
    )
    return estimate_memory(
        model, batch_size, optimizer, accumulation_steps=parts
    )


@pytest.mark.parametrize(
    "optimizer, dtype, num_bytes",
    [
        ("adamw", "float32", 8 * (64 * 64 + 64)),
        ("adamw", "bfloat16", 6 * (64 * 64 + 64)),
        ("lion", "float32", 4 * (64 * 64 + 64)),
        ("sgd", "bfloat16", 2 * (64 * 64 + 64)),
        # A row and a column for the second moment of the kernel.
        ("adafactor", "bfloat16", 2 * 64 * 64 + 4 * 2 * 64 + 6 * 64),
    ],
)
def test_memory_of_the_optimizer_is_that_of_its_slots(
    optimizer, dtype, num_bytes
):
    memory = estimate(chain(1), 2, optimizer, accumulator_dtype=dtype)
    assert memory.optimizer == num_bytes


def test_memory_of_a_chain_is_the_closed_form():
    # At the top of the layers: the images, an output each, the gradient of
    # the last one and that of what is under its tanh.
    for depth in (3, 7):
        images = (3 + depth) * 16 * 64 * 4
        assert estimate(chain(depth), 16).activations == images


def test_memory_of_the_largest_of_several_runs_and_of_a_teacher():
    model = chain(3)
    optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    runs = [lambda x, training, n=n: model(x[:n]) for n in (1, 4, 2)]
    several = estimate_memory(model, 8, optimizer, runs=runs, frozen=[chain(2)])
    alone = [
        estimate_memory(model, 8, optimizer, runs=[run]).activations
        for run in runs
    ]
    assert several.activations == alone[1] == max(alone) > alone[2]
    plain = estimate_memory(model, 8, optimizer)
    assert plain.activations > several.activations
    assert several.weights == plain.weights + 4 * 2 * (64 * 64 + 64)


def test_a_teacher_computes_the_images_of_a_part():
    """At its top are the images, and two of its layers at a time."""
    model, teacher = chain(1), chain(9, width=128)
    optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    alone = estimate_memory(model, 16, optimizer).activations
    for parts in (1, 2):
        taught = estimate_memory(
            model, 16, optimizer, accumulation_steps=parts, frozen=[teacher]
        )
        images = 16 // parts
        assert taught.activations == images * 4 * (64 + 2 * 128)
    assert taught.activations < alone


def test_frozen_layers_keep_nothing_for_the_way_back():
    """With the last of three layers trained, only its input is kept.

    At the top: the images, its input, its output, the gradient of the output
    and that of what is under its tanh.
    """
    model = chain(3)
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert estimate(model, 16).activations == 5 * 16 * 64 * 4


def test_memory_of_an_update_in_parts():
    whole, half, parts = (
        estimate(chain(3), *batch, accumulation_steps=n)
        for *batch, n in ((16, 1), (8, 1), (16, 2))
    )
    assert parts.activations == half.activations < whole.activations
    assert parts.gradients == 2 * whole.gradients


def test_a_block_keeps_what_its_products_and_norms_read():
    sizes = {"width": 128, "mlp_dim": 512, "num_heads": 2}
    two, three = (
        estimate(VisionTransformer(tiny_config(depth=n, **sizes)), 8)
        for n in (2, 3)
    )
    # Of 17 tokens with 128 numbers: the inputs of the norms (2), their outputs
    # (2), queries, keys and values (3), the output of the heads (1) and the
    # hidden layer before and after the activation (8). And the attention of
    # two heads.
    kept = 16 * 17 * 128 + 2 * 17 * 17
    assert three.activations - two.activations == 8 * 4 * kept
    model = VisionTransformer(tiny_config())
    one, four = (estimate(model, n).activations for n in (8, 32))
    assert four == pytest.approx(4 * one, rel=0.01)


def test_a_rematerialised_block_keeps_its_input_only():
    changes = {"dropout_rate": 0.1, "use_remat": True}
    two, three = (
        VisionTransformer(tiny_config(depth=n, **changes)) for n in (2, 3)
    )
    kept = estimate(three, 8).activations - estimate(two, 8).activations
    assert kept == 8 * 17 * 24 * 4


@pytest.mark.slow
def test_memory_is_that_of_a_real_step(subprocess_environment):
    program = """
        import dataclasses
        import resource

        import keras
        import tensorflow as tf

        from keras_vit.models import VARIANTS, VisionTransformer
        from trainers.training.memory import estimate_memory
        from trainers.optim.optimizers import make_optimizer

        model = VisionTransformer(
            dataclasses.replace(
                VARIANTS["Ti/16"].config, dropout_rate=0.1, depth=4
            )
        )

        @tf.function
        def compute_gradients(images):
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
            weights = [v.value for v in model.trainable_variables]
            gradients = tape.gradient(logits, weights)
            return tf.clip_by_global_norm(gradients, 1.0)

        images = tf.random.normal((16, 224, 224, 3))
        compute_gradients.get_concrete_function(images)
        with open("/proc/self/statm") as file:
            before = int(file.read().split()[1]) * resource.getpagesize()
        compute_gradients(images)
        # Not of getrusage, which counts the process that started this one.
        with open("/proc/self/status") as file:
            peak = 1024 * int(file.read().split("VmHWM:")[1].split()[0])
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
        memory = estimate_memory(model, 16, optimizer)
        print(peak - before, memory.gradients + memory.activations)
    """
    words = ["-c", textwrap.dedent(program)]
    result = commands.run(words, subprocess_environment)
    assert result.returncode == 0, result.stderr[-2000:]
    measured, estimated = map(int, result.stdout.split())
    assert 0.85 * estimated < measured < 1.25 * estimated + 0.2e9


GB = 10**9
PARTS = (1, 2, 4, 8, 16, 32, 64)


def need(parts, use_remat):
    """Return a need of 3 GB, and of 32 GB of a batch of 64 images."""
    activations = 32 * GB // parts // (8 if use_remat else 1)
    return Memory(GB, GB if parts == 1 else 2 * GB, GB, 0, activations)


def plan(available, parts=PARTS, remat=(False, True)):
    return plan_memory(need, available, parts, remat)


@pytest.mark.parametrize("parts", [(1,), (1, 2, 3, 6), PARTS, (4,)])
@pytest.mark.parametrize("remat", [(False,), (True,), (False, True)])
def test_the_first_way_that_fits_is_taken(parts, remat):
    ways = [(count, again) for again in remat for count in parts]
    for half_gb in range(1, 80):
        available = half_gb * GB // 2
        found = plan(available, parts, remat)
        fitting = [w for w in ways if need(*w).total <= available]
        want = fitting[0] if fitting else ways[-1]
        assert found[:2] == want
        assert found.fits == bool(fitting)
        assert found.memory == need(*want)


SMALL = {"image_size": 64, "model": "mu/16", "batch_size": 16}
SMALL |= {"total_steps": 2, "peak_tflops": 1.0, "augment": "flip_lr"}
SMALL["steps_per_loop"] = 2

LITTLE = 3 * 2**19  # Bytes, enough for 4 of its 16 images at once.


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return the name of a data set of 24 photos of two classes."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, 12 * ("cat", "dog"))
    return f"folder:{folder}"


@pytest.fixture
def start(dataset, tmp_path, monkeypatch):
    """Return a function that prepares a run with so much memory."""

    def prepare_run(available, folder="run", force=False, **given):
        monkeypatch.setattr(budget, "available_bytes", lambda *_: available)
        chosen = ChosenRecipe("photos", {"dataset": dataset, **SMALL, **given})
        folder = str(tmp_path / folder)
        return prepare(chosen.recipe, folder, force=force, chosen=chosen)

    return prepare_run


def needs(trainer, images):
    """Return the need of a number of images at once, without accumulation."""
    return estimate_memory(trainer.loop.model, images, trainer.loop.optimizer)


def ways(trainer):
    return trainer.recipe.accumulation_steps, trainer.recipe.use_remat


def test_the_batch_is_computed_in_the_fewest_parts_that_fit(start):
    whole = start(10**12)
    assert ways(whole) == (1, False)
    assert whole.memory_plan.memory == needs(whole, 16)
    # By hand: in four parts, the activations of 4 images and the sum of the
    # gradients as well.
    four = needs(whole, 4)
    available = four.total + four.gradients + GATHERED_BYTES
    assert needs(whole, 8).total + four.gradients > available
    parts = start(available)
    assert ways(parts) == (4, False)
    assert parts.loop.update.accumulation_steps == 4
    same = dataclasses.replace(parts.recipe, accumulation_steps=1)
    assert same == whole.recipe


def estimate_made_up(model, images, optimizer, accumulation_steps, **more):
    """Return a MB for each image, and an eighth of it if rematerialized."""
    size = images // accumulation_steps * 2**20
    return Memory(0, 0, 0, 0, size // (8 if model.config.use_remat else 1))


def test_rematerialization_is_next_and_flags_win(start, monkeypatch):
    monkeypatch.setattr(budget, "estimate_memory", estimate_made_up)
    both = start(2**19)
    assert ways(both) == (4, True)
    assert both.loop.model.config.use_remat
    assert ways(start(2**19, use_remat=False)) == (16, False)
    assert ways(start(2**19, accumulation_steps=2)) == (2, True)


def test_replicas_share_the_batch(start):
    trainer = start(10**12, strategy="mirrored")
    two = needs(trainer, 2)
    available = two.total + two.gradients + GATHERED_BYTES
    trainer = start(available, strategy="mirrored")
    assert ways(trainer) == (4, False)  # Of the 8 images of a replica.
    assert ways(start(available)) == (8, False)


def test_a_run_that_continues_keeps_its_way(start):
    first = start(LITTLE)
    assert first.recipe.accumulation_steps > 1
    run = RunFolder(first.run.folder)
    run.save_recipe(first.recipe, first.dataset.class_names)
    run.checkpoints_path.mkdir()
    again = start(10**12)
    assert again.recipe == first.recipe
    assert again.memory_plan is None
    assert ways(start(10**12, accumulation_steps=4)) == (4, False)
    assert ways(start(10**12, force=True)) == (1, False)


def test_the_worker_with_the_least_memory_decides(monkeypatch):
    asked = []

    class Engine:
        def gather(self, row):
            asked.append(row)
            return np.array([[9], row, [3]], "int32")

    monkeypatch.setattr(budget, "available_bytes", lambda *_: 2**30 + 5)
    assert least_available_bytes(Engine()) == 3 * GATHERED_BYTES
    assert asked[0].tolist() == [2**30 // GATHERED_BYTES]


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_normalization_needs_the_whole_batch(trainable):
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization()]
    )
    inner.trainable = trainable
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(1)])
    assert has_batch_statistics(model) is trainable
    assert not has_batch_statistics(keras.Sequential(model.layers[1:]))


MEMORY = Memory(1 * GB, 1 * GB, 2 * GB, 0, 16 * GB)


def job_of(num_replicas=1, **changes):
    """Return a trainer with the fields that advice depends on."""
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    engine = types.SimpleNamespace(num_replicas=num_replicas)
    loop = types.SimpleNamespace(engine=engine)
    return types.SimpleNamespace(recipe=recipe, loop=loop)


def advice(available, **changes):
    text = describe_shortage(MEMORY, available, job_of(**changes))
    return text.partition("less memory: ")[2].rstrip(".").split(", ")


def test_the_least_change_that_fits_is_named():
    """Of 4 GB that no batch changes, one more to accumulate, and 16 GB."""
    assert describe_shortage(MEMORY, 20 * GB, job_of()) == ""
    parts, batch, *both = advice(13 * GB)
    assert (parts, batch) == ("--accumulation_steps=2", "--batch_size=32")
    assert [text.partition("=")[0] for text in both] == [
        "--use_remat",
        "--train_only",
    ]
    # Accumulating needs 5 + 16 / 4 GB.
    parts, batch, *_ = advice(8.5 * GB)
    assert (parts, batch) == ("--accumulation_steps=8", "--batch_size=16")
    assert advice(8.5 * GB, accumulation_steps=2)[0] == parts
    least = {"use_remat": True, "lora_rank": 2, "init_from": "a.npz"}
    assert len(advice(13 * GB, **least)) == 2
    # Parts divide the batch of a replica.
    parts = advice(10.5 * GB, batch_size=12, num_replicas=4)[0]
    assert parts == "--accumulation_steps=3"
    # No batch is small enough.
    assert advice(3 * GB) == both
    assert advice(3 * GB, **least) == ["a smaller model"]


@pytest.mark.parametrize(
    "limit, used, want",
    [("5000", "1000", 4000), ("max", "1000", 9000), ("50000", "10", 9000)],
)
def test_a_container_may_have_less_than_its_machine(
    tmp_path, monkeypatch, limit, used, want
):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    monkeypatch.setattr(budget, "CGROUP", tmp_path)
    free = types.SimpleNamespace(available=9000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert available_bytes(make_engine("one_device")) == want
    mirrored = make_engine("mirrored")
    assert available_bytes(mirrored) == want // 2
    assert available_bytes(mirrored, held=70) == want // 2 + 70


def test_accelerators_have_their_own_memory(monkeypatch):
    engine = make_engine("mirrored")
    monkeypatch.setattr(engine, "memory_limits", lambda: [7, 5])
    assert available_bytes(engine, held=70) == 5


def test_a_job_that_does_not_fit_warns(recipe, tmp_path, monkeypatch, capsys):
    trainer = prepare(recipe, str(tmp_path))
    held = held_bytes(trainer.loop)
    need = estimate_training_memory(trainer)
    assert 0 < held == need.weights + need.optimizer + need.average
    table = describe_memory(need, 7 * GB).splitlines()
    assert table[-1].split() == ["available", "7.00", "GB"]
    capsys.readouterr()  # The data set may have been prepared.
    warn_of_shortage(trainer)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(budget, "LARGEST_BYTES_PER_FLOP", 1.0)
    monkeypatch.setattr(budget, "available_bytes", lambda *_: need.total - 1)
    warn_of_shortage(trainer)
    printed = capsys.readouterr().out
    assert printed.startswith("Warning: This does not fit: ")
    assert "--accumulation_steps=2" in printed
