"""Where the time of a step goes: python -m benchmarks.profile.

It runs on TensorFlow or PyTorch, as KERAS_BACKEND says. XLA, and so JAX,
compiles operations into others, whose names say too little.
"""

import argparse
import collections
import dataclasses
import importlib
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

import keras

from benchmarks import compare
from benchmarks.flops import (
    MATRIX_SHAPE,
    count_tokens,
    matrix_flops,
    moved_numbers,
    pair_flops,
    step_flops,
)
from benchmarks.harness import (
    MODELS,
    OURS,
    PRECISIONS,
    TASKS,
    describe_machine,
    make_parser,
)
from keras_vit import ViTConfig
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.tables import format_table

# Operations of XLA in a step of TensorFlow; in training, norms and GELU.
XLA = "ThunkExecutor::Execute"
# Patterns of the names of operations. In TensorFlow, a name is the path of the
# node and its kind; in PyTorch, the operation. The first match counts.
OPERATION_KINDS = {
    "products of pairs": r"BatchMatMul|scaled_dot_product|aten::b(add)?mm",
    "products": r"MatMul|Conv|aten::(add)?mm|convolution|_linear_pointwise",
    "optimizer": r"^adam|^Optimizer|aten::(addcmul|addcdiv|lerp|sqrt)_?$",
    "norms and GELU": rf"_norm|hidden_activation|gelu|{XLA}",
    "softmax": r"[Ss]oftmax",
    "casts": r":Cast$|aten::_to_copy",
    "copies": r"[Tt]ranspose|Split|Concat|Tile|aten::(copy_|cat|clone)$",
    "sums": r"Add|Sum|Sub|aten::(add_?|sum)$",
    "rest": "",
}


OPTIONS = [
    ("--model", MODELS, "B/16", "key of VARIANTS"),
    ("--task", TASKS, "forward", "forward or train"),
    ("--precision", PRECISIONS, "bfloat16", "as in benchmarks.compare"),
    ("--batch_size", int, 8, "images of a step"),
    ("--image_size", int, 224, "side in pixels"),
    ("--activation", ACTIVATIONS, "tanh", "tanh or exact"),
    ("--steps", int, 10, "steps that count"),
    ("--threads", int, os.cpu_count(), "to use"),
]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, OPTIONS)
    options = parser.parse_args(arguments)
    backend = keras.backend.backend()
    if backend not in STEP_RECORDERS:
        parser.error(f"KERAS_BACKEND: tensorflow or torch, not {backend}")
    if (options.task, options.precision) == ("train", "bfloat16"):
        options.precision = "mixed_bfloat16"
    return options


def main(arguments: list[str] | None = None):
    """Profile a step and print a table."""
    options = parse(arguments)
    backend = keras.backend.backend()
    config = compare.model_config(options.model, options.image_size)
    case = {
        **vars(options),
        "package": OURS,
        "config": dataclasses.asdict(config),
        "compile": False,
        "steps": 1,
        "operations_at_once": 1,  # Or their times would overlap.
        "matrix_shape": MATRIX_SHAPE,
        "matrix_dtype": options.precision.removeprefix("mixed_"),
    }
    worker = importlib.import_module(compare.WORKERS[backend])
    functions, versions = worker.make_functions(case)
    step = functions["step"]
    step_seconds = measure(step, options.steps)
    product_seconds = measure(functions["product"], 3 * options.steps)
    milliseconds = by_part(STEP_RECORDERS[backend](step, options.steps))
    floors = floor_milliseconds(
        config,
        options,
        matrix_flops(*MATRIX_SHAPE) / product_seconds,
        measure_bandwidth(config, options),
    )
    print("\n".join(f"- {line}" for line in describe_machine(versions)))
    print(
        f"- {options.model}, {options.task}, {options.precision}, batch "
        f"{options.batch_size}: a step takes {1e3 * step_seconds:.1f} ms, its "
        f"operations {sum(milliseconds.values()):.1f} ms\n"
    )
    whole = sum(milliseconds.values())
    rows = [
        [part, f"{value:.1f}", f"{value / whole:.0%}", f"{floors[part]:.1f}"]
        if part in floors
        else [part, f"{value:.1f}", f"{value / whole:.0%}", ""]
        for part, value in milliseconds.items()
    ]
    rows.append(["all", f"{whole:.1f}", "100%", f"{sum(floors.values()):.1f}"])
    print(format_table(["part", "ms", "share", "floor, ms"], rows))


def measure(function: Callable, rounds: int) -> float:
    """Return the median seconds of a call, after two that do not count."""
    seconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def record_tensorflow(step: Callable, steps: int) -> dict[str, float]:
    """Return the milliseconds of the operations of a step, by name."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    totals = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(steps):
                step()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                # Others are of the runtime, and contain operations.
                if name == XLA or re.fullmatch(r"[\w/.]+:\w+", name):
                    totals[name] += event.duration_ps / 1e9 / steps
    return totals


def record_torch(step: Callable, steps: int) -> dict[str, float]:
    """Return the milliseconds of the operations of a step, by name."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
    return {
        event.key: event.self_cpu_time_total / 1e3 / steps
        for event in profile.key_averages()
    }


def by_part(operations: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of the times of each part.

    Example:
        >>> parts = by_part({"aten::addmm": 3.0, "a/mlp_norm_1/Cast:Cast": 1.0})
        >>> parts["products"], parts["norms and GELU"], parts["rest"]
        (3.0, 1.0, 0.0)
    """
    parts = dict.fromkeys(OPERATION_KINDS, 0.0)
    for name, value in operations.items():
        part = next(
            x for x, words in OPERATION_KINDS.items() if re.search(words, name)
        )
        parts[part] += value
    return parts


def measure_bandwidth(config: ViTConfig, options: argparse.Namespace) -> float:
    """Return the bytes per second of adding 1 to the inner tokens of an MLP."""
    rows = options.batch_size * count_tokens(config)
    dtype = options.precision.removeprefix("mixed_")
    x = keras.ops.zeros((rows, config.mlp_dim), dtype)
    seconds = measure(lambda: x + 1, 3 * options.steps)
    size = 4 if dtype == "float32" else 2
    return 2 * size * rows * config.mlp_dim / seconds


def floor_milliseconds(
    config: ViTConfig,
    options: argparse.Namespace,
    flops_per_second: float,
    bytes_per_second: float,
) -> dict[str, float]:
    """Return the least milliseconds of each part, from measured rates."""
    task, batch_size = options.task, options.batch_size
    pairs = pair_flops(config, task, batch_size)
    others = step_flops(config, task, batch_size) - pairs
    floors = {
        "products of pairs": pairs / flops_per_second,
        "products": others / flops_per_second,
    }
    size = 4 if options.precision == "float32" else 2
    for part, count in moved_numbers(config, task, batch_size).items():
        # The optimizer has float32 weights with every precision.
        width = 4 if part == "optimizer" else size
        floors[part] = width * count / bytes_per_second
    return {part: 1e3 * seconds for part, seconds in floors.items()}


STEP_RECORDERS = {"tensorflow": record_tensorflow, "torch": record_torch}

if __name__ == "__main__":
    sys.exit(main())
