"""The options of benchmarks.compare."""

import argparse
import os
import pathlib
from collections.abc import Callable

from benchmarks import compare_report as report
from benchmarks.flops import MATRIX_SHAPE
from benchmarks.harness import (
    add_speed_options,
    check_speed_options,
    make_parser,
    split_names,
    split_numbers,
)
from keras_vit.layers.mlp import ACTIVATIONS

# By the backend that ours runs on: the packages to compare with, and the least
# time that they must take, as a multiple of ours, with --require.
BARS = {
    "tensorflow": {
        "keras-hub": report.Bar(row=1.05, mean=1.15),
        "timm": report.Bar(row=1.0, mean=1.0),
    },
    "torch": {"timm": report.Bar(row=1.0, mean=1.0)},
    "jax": {
        "plain-jax": report.Bar(row=1.15, mean=1.15),
        "timm": report.Bar(row=1.0, mean=1.1),
    },
}
COMPARED_PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16")
TASKS = ("forward", "train")
# The names that the options accept.
NAMES = {
    "precisions": COMPARED_PRECISIONS,
    "tasks": TASKS,
    "backend": BARS,
    "activation": ACTIVATIONS,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser("Measure keras_vit beside other packages.")
    add_what(parser.add_argument)
    add_how(parser.add_argument)
    options = parser.parse_args(arguments)
    options.matrix_shape = (
        (options.matrix_size,) * 3 if options.matrix_size else MATRIX_SHAPE
    )
    check_speed_options(parser, options, NAMES)
    known = BARS[options.backend]
    if options.against is None:
        options.against = list(known)
    for package in options.against:
        if package not in known:
            parser.error(
                f"--against: not compared on {options.backend}: {package}"
            )
    if options.backend == "torch" and not options.torch_python:
        parser.error("--backend torch needs --torch_python")
    return options


def add_what(add: Callable):
    """Add the options that choose the cases."""
    add_speed_options(add, models="S/16,B/16")
    add("--backend", default="tensorflow", help="that ours runs on")
    add(
        "--precisions",
        type=split_names,
        default="float32,bfloat16",
        help="of float32, bfloat16 (training: mixed_bfloat16), mixed_bfloat16",
    )
    add(
        "--tasks",
        type=split_names,
        default="forward,train",
        help="forward, train",
    )
    add(
        "--against",
        type=split_names,
        help="packages to compare with; by default those of the backend: "
        + "; ".join(f"{k}: {', '.join(v)}" for k, v in BARS.items()),
    )
    add(
        "--use_remat",
        action="store_true",
        help="train ours with less memory: it computes the tensors of a block "
        "again for the gradient",
    )
    add("--image_size", type=int, default=224, help="side in pixels")
    add(
        "--batch_sizes",
        type=split_numbers,
        default="8",
        help="images of a forward pass",
    )
    add(
        "--train_batch_sizes",
        type=split_numbers,
        default="16",
        help="images of a training step",
    )


def add_how(add: Callable):
    """Add the options of the measurement."""
    add("--repeats", type=int, default=10, help="rounds that count")
    add(
        "--steps",
        type=int,
        default=1,
        help="steps of a round, of which only the last is waited for: several "
        "on a GPU, which then works while Python prepares the next, and for "
        "single images, which in the first find the caches full of others",
    )
    add("--threads", type=int, default=os.cpu_count(), help="of each package")
    add(
        "--compile",
        action="store_true",
        help="compile the models: by XLA in TensorFlow, by torch.compile in "
        "PyTorch; JAX always does",
    )
    add(
        "--matrix_size",
        type=int,
        help="rows and columns of the matrices whose product is measured; by "
        "default those of the MLP of B/16, too small to fill a GPU",
    )
    add(
        "--peak_tflops",
        type=float,
        help="what the maker of the GPU names as the most of this precision; "
        "adds the share of it that the products of each model reach, its MFU",
    )
    add(
        "--require",
        action="store_true",
        help="exit with 1 if ours does not reach the bars of its backend",
    )
    add(
        "--out",
        type=pathlib.Path,
        default="build/benchmark",
        help="folder to fill",
    )
