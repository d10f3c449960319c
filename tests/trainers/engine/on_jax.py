"""Trains a small model on eight devices of JAX; started by test_jax.py.

Prints, as JSON, the weights after three updates for each strategy and number
of parts, those of a training that continues on other devices, the state that
a checkpoint of the TensorFlow engine, in the folder `of_tensorflow`, gives,
why some trainings are not continued, which sums of gradients are refused, and
how many batches wait on a device.
"""

import json
import sys

import jax
import keras
import numpy as np
import tensorflow as tf

from trainers.engine.checkpoints import CheckpointError, Checkpoints
from trainers.engine.strategies import make_engine
from trainers.engine.update import Update
from trainers.optim.losses import softmax
from trainers.optim.optimizers import make_optimizer
from trainers.training.loop import Best, Loop

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


def make_loop(strategy, model_devices, parts, folder=None, best=None):
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


def train(loop, total_steps):
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
        make_loop(strategy, 1, 1, folder, Best())
    except CheckpointError as error:
        return str(error)
    return "it is continued"


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


def main(folder):
    """Print the results of all cases."""
    results = {
        " ".join(map(str, case)): train(make_loop(*case), 3) for case in CASES
    }
    # Stopped after one update, and continued on other devices.
    loop = make_loop("fsdp", 1, 1, folder)
    train(loop, 1)
    kernel = loop.model.get_layer("hidden").kernel.value
    results["after_one"] = state_of(loop)
    results["shard"] = list(kernel.addressable_shards[0].data.shape)
    results["continued"] = train(make_loop("one_device", 1, 1, folder), 3)
    of_tensorflow = make_loop("fsdp", 1, 1, f"{folder}/of_tensorflow")
    results["of_tensorflow"] = state_of(of_tensorflow)
    results["refused"] = {
        path: why_refused("fsdp", f"{folder}/{path}")
        for path in (".", "of_tensorflow")
    }
    results["waiting"] = most_waiting()
    results["sums"] = {" ".join(case): compile_sums(*case) for case in SUMS}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
