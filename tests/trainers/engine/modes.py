"""Makes some updates in each mode of the trainers; see test_modes.py.

As a command, it makes them on eight devices of JAX, which split the weights,
and writes the states to a file, and a whole run beside it:

    python -m tests.trainers.engine.modes RESULTS.npz TEACHER.keras
"""

import dataclasses
import functools
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from trainers.data.batches import train_batches
from trainers.data.datasets import open_dataset
from trainers.engine.engine import Share
from trainers.engine.pieces import name_variables
from trainers.engine.strategies import make_engine
from trainers.models.factory import build_model
from trainers.recipes.recipe import Recipe
from trainers.training.trainer import make_loop, prepare

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
    "lamb, layer decay, debiased average": {
        "optimizer": "lamb",
        "learning_rate": 0.01,
        "layer_decay": 0.5,
        "use_average_debias": True,
    },
    "adafactor, frozen but for some": {
        "optimizer": "adafactor",
        "learning_rate": 0.01,
        "train_only": "head,norms",
        "schedule": "steps",
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
    "soft teacher": {"teacher": "", "distillation_target": "soft"},
    "distilled token": {"teacher": "", "pooling": "distilled"},
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
    "float16": {"precision": "float16"},
    "bfloat16": {"precision": "bfloat16", "gradient_dtype": "bfloat16"},
}
# Modes for which each engine draws numbers of its own.
DRAWING_MODES = {
    "dropout": {
        "dropout_rate": 0.2,
        "stochastic_depth_rate": 0.2,
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


@functools.cache
def read_batches(augment, image_size):
    """Return images, labels and weights of some batches."""
    batches = train_batches(
        open_dataset("digits"),
        image_size=image_size,
        batch_size=BASE.batch_size,
        augment=augment,
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
    loop = make_loop(
        recipe,
        open_dataset("digits"),
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
    arrays = read_batches(recipe.augment, size)
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


def main(results, teacher):
    """Write the states of all modes after their updates."""
    found = {}
    for mode in [*MODES, *DRAWING_MODES]:
        alone = ["one_device"] if mode in DRAWING_MODES else []
        for strategy in ["fsdp", *alone]:
            _, after = run(mode, strategy, teacher)
            found |= {f"{mode}/{strategy}/{n}": x for n, x in after.items()}
    np.savez(results, **found)
    train_kept("fsdp", os.path.join(os.path.dirname(results), "run"))


if __name__ == "__main__":
    main(*sys.argv[1:])
