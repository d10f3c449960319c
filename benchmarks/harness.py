"""Functions of all drivers: options, rounds in turns, ratios, CSV files."""

import argparse
import csv
import os
import pathlib
import platform
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.files import atomic_write
from keras_vit.tables import pick

OURS = "ours"


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser that shows the defaults and the first line of `doc`."""
    return argparse.ArgumentParser(
        description=doc.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def add_csv_option(add: Callable, name: str, text: str = "file to write"):
    """Add the option --csv.

    Args:
        add: `add_argument` of a parser.
        name: Name of the default file in `benchmarks/results`.
        text: The help.
    """
    default = f"benchmarks/results/{name}.csv"
    add("--csv", type=pathlib.Path, default=default, help=text)


def add_speed_options(add: Callable, models: str):
    """Add the options of the drivers that compare speed with timm.

    Args:
        add: `add_argument` of a parser.
        models: The default of --models.
    """
    add("--models", type=split_names, default=models, help="keys of VARIANTS")
    add("--activation", default="tanh", help="tanh or exact; timm's is exact")
    add("--torch_python", help="interpreter that has torch and timm")


def check_speed_options(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    known: Mapping[str, Iterable[str]],
):
    """End the program if an option names something unknown.

    Args:
        parser: Ends the program.
        options: Of `add_speed_options` and more.
        known: The names that an option may hold, by the name of the option.
    """
    for option, names in {"models": VARIANTS, **known}.items():
        values = getattr(options, option)
        values = [values] if isinstance(values, str) else values
        try:
            for value in values:
                pick(dict.fromkeys(names), value, f"--{option}")
        except ValueError as error:
            parser.error(str(error))
    for model in options.models:
        config = VARIANTS[model].config
        if config.stem_stages is not None or config.pooling != "token":
            parser.error(f"--models: not a ViT that all packages have: {model}")
    if options.torch_python and not shutil.which(options.torch_python):
        parser.error(f"--torch_python: no program: {options.torch_python}")


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


def split_names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_numbers(text: str) -> list[int]:
    """Return the positive numbers in a list with commas."""
    values = [int(number) for number in split_names(text)]
    if min(values, default=0) < 1:
        raise argparse.ArgumentTypeError(f"not positive numbers: {text!r}")
    return values


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median over the rounds of their seconds over ours.

    A machine that slows down slows down both sides of a round, which leaves
    their ratio.

    Example:
        >>> median_ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


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
    """Return lines on the processor and on the versions of the packages.

    Args:
        versions: Of the packages, by name.
        threads: That each package may use; None for all there are.
    """
    versions = {"python": platform.python_version(), **versions}
    return [
        f"Processor: {processor_name()}, {threads or os.cpu_count()} threads",
        f"System: {platform.system()} {platform.machine()}",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()),
    ]


def processor_name() -> str:
    """Return the name the processor gives itself, as far as it is known."""
    information = pathlib.Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
