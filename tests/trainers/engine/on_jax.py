"""Trainings on eight devices of JAX, which split the weights; see test_jax.py.

    python -m tests.trainers.engine.on_jax FOLDER TEACHER.keras

makes some updates in each mode of the trainers and writes the states to a file
in the folder, a whole run beside it, and to results.json what a small model
gives: the weights after three updates for each strategy and number of parts,
and how often they were compiled, those of a training that continues on other
devices, the state that a checkpoint of the TensorFlow engine gives, why some
trainings are not continued, which sums of gradients are refused, and how many
batches wait on a device.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import sys
import types
import warnings

import jax
import keras
import numpy as np
import tensorflow as tf
from jax._src.interpreters import mlir

from trainers.data.batches import train_batches
from trainers.data.datasets import open_dataset
from trainers.engine.checkpoints import CheckpointError, Checkpoints
from trainers.engine.engine import Share
from trainers.engine.pieces import name_variables
from trainers.engine.strategies import make_engine
from trainers.engine.update import Update
from trainers.models.factory import build_model
from trainers.optim.losses import LossScale, softmax
from trainers.optim.optimizers import make_optimizer
from trainers.recipes.recipe import Recipe
from trainers.training.loop import Best, Loop
from trainers.training.trainer import make_loop, prepare

draws = np.random.default_rng(0)
IMAGES = draws.normal(size=(32, 32)).astype("float32")
LABELS = np.eye(4, dtype="float32")[draws.integers(0, 4, 32)]
WEIGHTS = np.array([1, 0, 1, 0.5] * 8, "float32")
# Strategy, devices of a layer, and parts of a batch.
CASES = [
    *(("one_device", 1, 1), ("one_device", 1, 4), ("data_parallel", 1, 1)),
    *(("data_parallel", 1, 4), ("fsdp", 1, 1), ("fsdp", 1, 4), ("fsdp", 2, 1)),
    ("tensor_parallel", 1, 1),
]
# Strategy, type policy and type in which gradients are to be summed, and the
# type in which they would be; None if that is the same.
SUMS = {
    ("fsdp", "float32", "float32"): None,
    ("fsdp", "float32", "bfloat16"): "float32",
    ("fsdp", "mixed_bfloat16", "float32"): "bfloat16",
    ("data_parallel", "mixed_bfloat16", "float32"): "bfloat16",
    ("fsdp", "mixed_bfloat16", "bfloat16"): None,
    ("fsdp", "mixed_float16", "float32"): None,
    ("one_device", "mixed_bfloat16", "float32"): None,
}


def small_loop(strategy, model_devices, parts, folder=None, best=None):
    """Return a loop from the state in a folder, if there is one."""
    keras.utils.set_random_seed(0)
    engine = make_engine(strategy, model_devices=model_devices)
    with engine.scope():
        model = keras.Sequential(
            [
                keras.Input((32,)),
                keras.layers.Dense(64, "relu", name="hidden"),
                keras.layers.Dropout(0.3, seed=1),
                keras.layers.Dense(4, name="head"),
            ],
            name="small",
        )
        optimizer = make_optimizer(
            "sgd", model.trainable_variables, 0.5, 0.1, average_decay=0.9
        )
    update = Update(
        model, optimizer, softmax, clip_norm=0.05, accumulation_steps=parts
    )
    loop = Loop(update, engine, best=best)
    if folder:
        state = loop.state
        loop.checkpoints = Checkpoints(folder, state, engine, 9)
        loop.resume()
    return loop


def skip_update():
    """Return by how much an update with an overflow changes the weights."""
    engine = make_engine("data_parallel")
    with engine.scope():
        layers = [
            keras.Input((32,)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(4, dtype="mixed_float16"),
        ]
        model = keras.Sequential(layers)
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.5)
        scale = LossScale(2.0**60)
    before = model.get_weights()
    train_small(
        Loop(Update(model, optimizer, softmax, loss_scale=scale), engine), 1
    )
    changes = [np.abs(a - b).max() for a, b in zip(model.get_weights(), before)]
    return [float(scale.factor), *map(float, changes)]


def train_small(loop, total_steps):
    """Return the weights and the last loss."""

    def batches(share):
        data = tf.data.Dataset.from_tensors((IMAGES, LABELS, WEIGHTS))
        return data.repeat()

    logs = loop.train(
        batches,
        batches,
        total_steps=total_steps,
        steps_per_eval=3,
        eval_steps=1,
    )
    weights = [weight.tolist() for weight in loop.model.get_weights()]
    return {"weights": weights, "loss": logs["val_loss"]}


def state_of(loop):
    """Return the weights, their averages and the number of the update."""
    optimizer = loop.optimizer
    return {
        "weights": [weight.tolist() for weight in loop.model.get_weights()],
        "averages": [np.asarray(x).tolist() for x in optimizer.averages],
        "iterations": int(optimizer.values[-1]),
        "step": loop.step,
    }


def why_refused(strategy, folder):
    """Return why a training that keeps its best model is not continued.

    That in the folder does not keep it.
    """
    try:
        small_loop(strategy, 1, 1, folder, Best())
    except CheckpointError as error:
        return str(error)
    return "it is continued"


def read_damaged(folder):
    """Return the step of a copy whose newest state has another bit, and why."""
    copy = f"{folder}/damaged"
    for path in pathlib.Path(folder).glob("step-*"):
        shutil.copytree(path, f"{copy}/{path.name}")
    [file] = pathlib.Path(copy).glob("step-00000003/*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        step = small_loop("fsdp", 1, 1, copy).step
    return step, [str(warning.message) for warning in caught]


def compile_sums(strategy, policy, gradient_dtype):
    """Return why gradients cannot be summed in a type; "" if they can."""
    engine = make_engine(strategy)
    with engine.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3, dtype=policy)]
        )
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.5)
    update = Update(model, optimizer, softmax, gradient_dtype=gradient_dtype)
    try:
        engine.compile(update)
    except ValueError as error:
        return str(error)
    return ""


class Slow(keras.layers.Layer):
    """Takes longer to compute than a batch takes to be read."""

    def call(self, x):
        product = keras.ops.stop_gradient(x[0, 0]) + keras.ops.ones((512, 512))
        for _ in range(4):
            product = keras.ops.matmul(product, product) / 512
        return x + 1e-9 * product[0, 0]


def most_waiting(count=10):
    """Return how many batches wait on a device at most, with the current one.

    They are counted when the host begins to read another one.
    """
    engine = make_engine("one_device")
    model = keras.Sequential(
        [keras.Input((32,)), Slow(), keras.layers.Dense(4)]
    )
    optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    compiled = engine.compile(Update(model, optimizer, softmax))
    waiting, results = [], []

    def noting(function):
        def call(*arguments):
            results.append(function(*arguments))
            return results[-1]

        return call

    def batches(share):
        data = tf.data.Dataset.from_tensors((IMAGES, LABELS, WEIGHTS))
        return data.repeat()

    def read():
        for batch in engine.batches(batches):
            ready = [jax.tree.leaves(x)[-1].is_ready() for x in results]
            waiting.append(ready.count(False))
            yield batch

    compiled._measure = noting(compiled._measure)
    program = compiled._program
    compiled._program = lambda *arguments: noting(program(*arguments))
    iterator = read()
    compiled.train(iterator, count, 0)
    compiled.measure(iterator, count)
    return max(waiting[:count]), max(waiting[count:])


NUM_UPDATES = 3
BASE = Recipe(
    dataset="digits",
    image_size=8,
    model="mu/16",
    patch_size=2,
    batch_size=16,
    total_steps=NUM_UPDATES,
    learning_rate=0.1,
    optimizer="sgd",
    weight_decay=0.01,
    average_decay=0.5,
)
MODES = {
    "adamw, clipped": {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "clip_norm": 0.01,
        "accumulation_steps": 2,
        "use_remat": True,
    },
    # The gradients of some biases are rounding alone, which Adam divides by
    # itself unless it is far below epsilon.
    "adam without decay, average or clipping": {
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "train_only": "head,norms",
        "weight_decay": 0.0,
        "average_decay": 0.0,
        "clip_norm": 0.0,
        "adam_beta2": 0.95,
    },
    "lamb, layer decay, debiased average, soft teacher": {
        "optimizer": "lamb",
        "learning_rate": 0.01,
        "layer_decay": 0.5,
        "use_average_debias": True,
        "teacher": "",
        "distillation_target": "soft",
    },
    "adafactor, frozen but for some, distilled token": {
        "optimizer": "adafactor",
        "learning_rate": 0.01,
        "train_only": "head,norms",
        "schedule": "steps",
        "teacher": "",
        "pooling": "distilled",
    },
    "lion, mixup, sigmoid": {
        "optimizer": "lion",
        "learning_rate": 1e-3,
        "train_only": "head",
        "augment": "mixup(0.5)",
        "loss": "sigmoid",
        "label_smoothing": 0.1,
    },
    "lora, cutmix, class weights": {
        "lora_rank": 2,
        "lora_layers": "qkv,out,mlp_hidden,mlp_out",
        "augment": "cutmix(1.0)",
        "class_weights": "balanced",
    },
    # With this seed, both engines draw the same of them.
    "patch sizes": {"patch_sizes": "2,4", "seed": 5},
    "hybrid, bfloat16 momentum": {
        "model": "R+Ti/16",
        "image_size": 32,
        "patch_size": 2,
        "depth": 1,
        "width": 24,
        "num_heads": 2,
        "mlp_dim": 48,
        "accumulator_dtype": "bfloat16",
    },
    "batch norm": {},
    "classes of pixels": {
        "objective": "segment",
        "augment": "affine(10, 0.1, 0.1)",
        "dice_weight": 0.5,
        "label_smoothing": 0.1,
        "lora_rank": 2,
    },
    "depths": {
        "objective": "depth",
        "dense_head": "dpt",
        "clip_norm": 0.5,
    },
    "depths up to scale": {
        "objective": "depth",
        "depth_loss": "relative",
        "clip_norm": 0.5,
    },
    "float16": {"precision": "float16"},
    "bfloat16": {"precision": "bfloat16", "gradient_dtype": "bfloat16"},
}
# Modes for which each engine draws numbers of its own.
DRAWING_MODES = {
    "dropout": {
        "dropout_rate": 0.2,
        "stochastic_depth_rate": 0.2,
        "patch_dropout_rate": 0.3,
        "accumulation_steps": 2,
    },
    "masked patches": {"objective": "masked_patches"},
    "autoencoder": {
        "objective": "autoencoder",
        "decoder_width": 32,
        "decoder_depth": 1,
        "decoder_heads": 2,
    },
}


def build(mode, recipe, dataset):
    """Return the model of a mode, with weights that no backend has drawn."""
    if mode == "batch norm":
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
    else:
        model = build_model(recipe, dataset)
    draws = np.random.default_rng(0)
    for variable in model.variables:
        if not is_seed(variable) and "moving" not in variable.path:
            noise = 0.1 * draws.normal(size=variable.shape)
            ones = np.ones(variable.shape)
            is_scale = variable.path.endswith("gamma")
            variable.assign(noise + ones if is_scale else noise)
    return model


def is_seed(variable):
    return "seed_generator" in getattr(variable, "path", "")


def open_data(recipe, folder):
    """Return the digits, or images with maps in the folder."""
    if not recipe.has_maps:
        return open_dataset("digits")
    name = f"pairs:{folder}/{recipe.objective}"
    return open_dataset(name, labels=recipe.label_options)


@functools.cache
def read_batches(recipe, folder, image_size):
    """Return images, labels and weights of some batches."""
    batches = train_batches(
        open_data(recipe, folder),
        image_size=image_size,
        batch_size=BASE.batch_size,
        augment=recipe.augment,
        **Share()._asdict(),
    )
    taken = list(batches.take(NUM_UPDATES).as_numpy_iterator())
    return tuple(np.stack(arrays) for arrays in zip(*taken))


def run(mode, strategy, teacher):
    """Return the state before and after the updates, both {name: array}.

    The second one has the sums of the loss as well, in training and at rest.
    """
    changes = {**MODES, **DRAWING_MODES}[mode]
    if "teacher" in changes:
        changes = {**changes, "teacher": teacher}
    recipe = dataclasses.replace(BASE, **changes, strategy=strategy)
    folder = os.path.dirname(teacher)
    loop = make_loop(
        recipe,
        open_data(recipe, folder),
        make_engine(strategy),
        NUM_UPDATES,
        build=functools.partial(build, mode),
    )
    update = loop.update
    named = name_variables(update.model, update.optimizer, update.loss_scale)

    def read():
        return {
            name: np.asarray(variable).astype("float32")
            for name, variable in named.items()
            if not is_seed(variable)
        }

    size = update.model.input_shape[1:3]
    arrays = read_batches(
        dataclasses.replace(recipe, strategy="one_device"), folder, size
    )
    batches = loop.engine.batches(
        lambda share: tf.data.Dataset.from_tensor_slices(arrays)
    )
    before = read()
    made, trained, _ = loop.compiled.train(iter(batches), NUM_UPDATES, 0)
    measured = loop.compiled.measure(iter(batches), 1)
    assert made == NUM_UPDATES
    sums = {"sums/trained": trained, "sums/measured": measured}
    return before, {**read(), **sums}


# The second of three evaluations is the best.
KEPT = dataclasses.replace(
    BASE,
    batch_size=32,
    total_steps=12,
    learning_rate=0.5,
    epochs_per_eval=4 / 45,
    keep_best=True,
    log_attention=1,
    peak_tflops=1.0,
)


def train_kept(strategy, folder):
    """Train as `trainers.train` does, from weights that no backend draws."""
    recipe = dataclasses.replace(KEPT, strategy=strategy)
    make = functools.partial(build, "kept")
    prepare(recipe, folder, build=make).train()


def main(folder, teacher):
    """Write the results of all cases, and the states of all modes."""
    # Half of the time goes into a new context of MLIR for each program.
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    results, compiled = {}, {}
    for case in CASES:
        loop, name = small_loop(*case), " ".join(map(str, case))
        results[name] = train_small(loop, 3)
        [program] = loop.compiled._compiled.values()
        compiled[name] = program._cache_size()
    results["compiled"] = compiled
    # Stopped after one update, and continued on other devices.
    loop = small_loop("fsdp", 1, 1, folder)
    train_small(loop, 1)
    kernel = loop.model.get_layer("hidden").kernel.value
    results["after_one"] = state_of(loop)
    results["shard"] = list(kernel.addressable_shards[0].data.shape)
    loop = small_loop("one_device", 1, 1, folder)
    results["continued"] = train_small(loop, 3)
    of_tensorflow = small_loop("fsdp", 1, 1, f"{folder}/of_tensorflow")
    results["of_tensorflow"] = state_of(of_tensorflow)
    results["refused"] = {
        path: why_refused("fsdp", f"{folder}/{path}")
        for path in (".", "of_tensorflow")
    }
    results["damaged"] = read_damaged(folder)
    results["waiting"] = most_waiting()
    results["skipped"] = skip_update()
    results["limits"] = [loop.engine.memory_limits()]
    loop.engine._local = [
        types.SimpleNamespace(memory_stats=lambda n=n: {"bytes_limit": n})
        for n in (7, 5)
    ]
    results["limits"].append(loop.engine.memory_limits())
    results["sums"] = {" ".join(case): compile_sums(*case) for case in SUMS}
    pathlib.Path(folder, "results.json").write_text(json.dumps(results))
    found = {}
    for mode in [*MODES, *DRAWING_MODES]:
        alone = ["one_device"] if mode in DRAWING_MODES else []
        for strategy in ["fsdp", *alone]:
            _, after = run(mode, strategy, teacher)
            found |= {f"{mode}/{strategy}/{n}": x for n, x in after.items()}
    np.savez(f"{folder}/states.npz", **found)
    train_kept("fsdp", f"{folder}/run")


if __name__ == "__main__":
    main(*sys.argv[1:])
