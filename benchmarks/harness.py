"""What all drivers share: options, models, ratios of rounds, CSV files."""

import argparse
import csv
import os
import pathlib
import platform
import shutil
import statistics
from collections.abc import Callable, Iterable

import numpy as np

from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.files import atomic_write
from keras_vit.layers.mlp import ACTIVATIONS

OURS = "ours"
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16")
TASKS = ("forward", "train")
# Those that all packages have.
MODELS = [
    name
    for name, variant in VARIANTS.items()
    if variant.config.stem_stages is None and variant.config.pooling == "token"
]


def make_parser(doc: str, rows: Iterable[tuple]) -> argparse.ArgumentParser:
    """Return a parser that shows the defaults and the first line of `doc`.

    A row is an option, its type or its choices, its default and its help.
    """
    parser = argparse.ArgumentParser(
        description=doc.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, kind, default, text in rows:
        if kind is bool:
            parser.add_argument(name, action="store_true", help=text)
        else:
            kind = {"type" if callable(kind) else "choices": kind}
            parser.add_argument(name, **kind, default=default, help=text)
    return parser


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the type of an option that holds known names, with commas."""

    def split(text):
        names = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: none of {', '.join(known)}"
            )
        return names

    return split


def split_numbers(text: str, kind: type = int) -> list:
    """Return the positive numbers in a list with commas."""
    try:
        values = [kind(number) for number in text.split(",")]
    except ValueError:
        values = [0]
    if not min(values) > 0:
        raise argparse.ArgumentTypeError(f"not positive numbers: {text!r}")
    return values


def find_program(text: str) -> str:
    """Return the path of a program that is there."""
    if not shutil.which(text):
        raise argparse.ArgumentTypeError(f"no program: {text}")
    return text


def speed_options(models: str) -> list[tuple]:
    """Return the rows of the drivers that compare speed with timm."""
    return [
        ("--models", names_of(MODELS), models, "keys of VARIANTS"),
        ("--activation", ACTIVATIONS, "tanh", "GELU of ours; timm's is exact"),
        ("--torch_python", find_program, None, "that has torch and timm"),
    ]


def build_ours(case: dict) -> VisionTransformer:
    """Return keras_vit's model of `case["config"]`, on any backend."""
    config = ViTConfig(**{**case["config"], "activation": case["activation"]})
    return VisionTransformer(config, dtype=case["precision"])


def random_batch(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return random images (B, H, W, C) in [-1, 1] and random labels (B,)."""
    config, size = case["config"], case["batch_size"]
    rng = np.random.default_rng(0)
    shape = (size, *config["image_size"], config["channels"])
    images = rng.uniform(-1, 1, shape).astype("float32")
    return images, rng.integers(config["num_classes"], size=size)


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median over the rounds of their seconds over ours.

    A machine that slows down slows down both sides of a round, which leaves
    their ratio.

    Example:
        >>> median_ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def quartiles(values: Iterable[float]) -> np.ndarray:
    """Return the first quartile, the median and the third quartile."""
    return np.quantile(list(values), (0.25, 0.5, 0.75))


def write_table(path: pathlib.Path, rows: list[dict]):
    """Write rows with the same keys; the keys are the first line."""
    with (
        atomic_write(path) as draft,
        draft.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def describe_machine(
    versions: dict[str, str], threads: int | None = None
) -> list[str]:
    """Return lines on the processor and on the versions of the packages."""
    processor = platform.processor() or platform.machine()
    information = pathlib.Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
    versions = {"python": platform.python_version(), **versions}
    return [
        f"Processor: {processor}, {threads or os.cpu_count()} threads",
        f"System: {platform.system()} {platform.machine()}",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()),
    ]
