"""Measure keras_vit beside keras-hub and timm: python -m benchmarks.compare."""

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import sys
from collections.abc import Iterable

from benchmarks import compare_report as report
from benchmarks.flops import MATRIX_SHAPE, step_flops
from benchmarks.harness import (
    OURS,
    add_speed_options,
    check_speed_options,
    describe_machine,
    make_parser,
    split_names,
    write_csv,
)
from benchmarks.serve import Worker
from keras_vit import VARIANTS, ViTConfig, __version__
from keras_vit.layers.activations import ACTIVATIONS

RIVALS = ("keras-hub", "timm")
# Whose worker measures the matrix product of which library, and how often in
# a round.
LIBRARIES = {OURS: "tensorflow", "timm": "torch"}
PRODUCTS = 3
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16")
TASKS = ("forward", "train")
# What the options may name.
NAMES = {
    "precisions": PRECISIONS,
    "tasks": TASKS,
    "against": RIVALS,
    "activation": ACTIVATIONS,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and write its tables.

    Args:
        arguments: Those of the command line, None for the real ones.

    Returns:
        The exit code: 1 if ours has to be not slower, and is slower.
    """
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    packages = [OURS, *rivals(options)]
    versions = {"keras_vit": __version__}
    results = []
    for case in cases(options):
        results.append(measure_case(case, packages, options, versions))
        # After each case, so that an interrupted run leaves what it has.
        page = write(options, results, packages, versions)
        print(page.splitlines()[-1], flush=True)
    print(page)
    if not options.require_not_slower:
        return 0
    slower = report.slower_rows(results, "keras-hub", options.tolerance)
    for row in slower:
        print(
            f"SLOWER than keras-hub: {row.model} {row.task} {row.precision}, "
            f"keras-hub / ours = {row.ratio('keras-hub'):.3f}"
        )
    return 1 if slower else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_speed_options(add, models="S/16,B/16")
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
        default="keras-hub,timm",
        help="packages to compare with; empty to measure ours alone",
    )
    add("--image_size", type=int, default=224, help="side in pixels")
    add("--batch_size", type=int, default=8, help="images of a forward pass")
    add("--train_batch_size", type=int, default=16, help="of a training step")
    add("--repeats", type=int, default=10, help="rounds that count")
    add("--threads", type=int, default=os.cpu_count(), help="of each package")
    add("--xla", action="store_true", help="compile the Keras models by XLA")
    add(
        "--out",
        type=pathlib.Path,
        default="build/benchmark",
        help="folder to fill",
    )
    options = parser.parse_args(arguments)
    check_speed_options(parser, options, NAMES)
    if options.require_not_slower and "keras-hub" not in options.against:
        parser.error("--require_not_slower needs --against keras-hub")
    return options


def rivals(options: argparse.Namespace) -> list[str]:
    """Return the packages to compare with for which there is a place to run."""
    return [
        package
        for package in options.against
        if package != "timm" or options.torch_python
    ]


def libraries(packages: Iterable[str]) -> dict[str, str]:
    """Return the libraries whose matrix product is measured, by package."""
    return {p: LIBRARIES[p] for p in packages if p in LIBRARIES}


def cases(options: argparse.Namespace) -> list[dict]:
    """Return what is measured: every model, task and precision.

    Training in bfloat16 keeps float32 weights: it is mixed_bfloat16.
    """
    return [
        {"model": model, "task": task, "precision": precision}
        for model in options.models
        for task in options.tasks
        for precision in dict.fromkeys(
            "mixed_bfloat16" if (task, p) == ("train", "bfloat16") else p
            for p in options.precisions
        )
    ]


def measure_case(
    case: dict,
    packages: list[str],
    options: argparse.Namespace,
    versions: dict,
) -> report.Result:
    """Return the result of a case.

    Args:
        case: Of `cases`.
        packages: Ours and the others.
        options: Of the command line.
        versions: Takes the versions of what was run.
    """
    config = model_config(case["model"], options.image_size)
    training = case["task"] == "train"
    batch_size = options.train_batch_size if training else options.batch_size
    request = {
        **case,
        "config": dataclasses.asdict(config),
        "batch_size": batch_size,
        "threads": options.threads,
        "activation": options.activation,
        "xla": options.xla,
        "matrix_shape": MATRIX_SHAPE,
        "matrix_dtype": case["precision"].removeprefix("mixed_"),
    }
    with contextlib.ExitStack() as stack:
        workers = {}
        for package in packages:
            worker = start(package, request, options)
            workers[package] = stack.enter_context(worker)
            versions.update(worker.versions)
        seconds, product_seconds = measure(workers, options.repeats)
    return report.Result(
        **case,
        batch_size=batch_size,
        flops=step_flops(config, case["task"], batch_size),
        seconds=seconds,
        product_seconds=product_seconds,
    )


def model_config(model: str, image_size: int) -> ViTConfig:
    """Return the configuration that all packages build."""
    return dataclasses.replace(
        VARIANTS[model].config, image_size=image_size, dropout_rate=0.0
    )


def start(package: str, request: dict, options: argparse.Namespace) -> Worker:
    """Return a worker that is ready to run `package`."""
    request = {**request, "package": package}
    if package == "timm":
        return Worker("benchmarks.worker_timm", request, options.torch_python)
    return Worker("benchmarks.worker_keras", request)


def measure(
    workers: dict[str, Worker], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of the steps, by package, and of the products.

    A round runs one step of every package, one after the other: only one
    process works at a time, and a machine that gets slower does so for all.
    Then it runs the matrix product in each library.

    Args:
        workers: By package.
        rounds: Number of rounds.
    """
    steps = {package: [] for package in workers}
    products = {library: [] for library in libraries(workers).values()}
    for _ in range(rounds):
        for package, worker in workers.items():
            steps[package].append(worker.run("step"))
        for package, library in libraries(workers).items():
            products[library] += [
                workers[package].run("product") for _ in range(PRODUCTS)
            ]
    return steps, products


def write(
    options: argparse.Namespace,
    results: list[report.Result],
    packages: list[str],
    versions: dict,
) -> str:
    """Write results.csv and results.md and return the latter."""
    description = [
        *describe_machine(versions, options.threads),
        f"Run: {datetime.date.today()}, {options.repeats} rounds, images of "
        f"{options.image_size}x{options.image_size}, GELU of ours: "
        f"{options.activation}, XLA: {options.xla}",
    ]
    if "timm" in options.against and not options.torch_python:
        description.append("timm was left out: no --torch_python was given")
    columns = list(libraries(packages).values())
    page = report.format_page(results, packages, columns, description)
    write_csv(options.out / "results.csv", report.csv_rows(results))
    (options.out / "results.md").write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
