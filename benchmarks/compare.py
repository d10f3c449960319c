"""Measure keras_vit beside other packages: python -m benchmarks.compare."""

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
    split_numbers,
    write_csv,
)
from benchmarks.serve import Worker
from keras_vit import VARIANTS, ViTConfig, __version__
from keras_vit.layers.activations import ACTIVATIONS

# By the backend that ours runs on: the packages to compare with, and what they
# have to take as a multiple of our time, with --require.
BARS = {
    "tensorflow": {
        "keras-hub": report.Bar(row=1.05, mean=1.15),
        "timm": report.Bar(row=1.0, mean=1.0),
    },
    "torch": {"timm": report.Bar(row=1.0, mean=1.0)},
    "jax": {"plain-jax": report.Bar(row=1.15, mean=1.15)},
}
# The worker of a package; that of ours depends on the backend.
WORKERS = {
    "tensorflow": "benchmarks.worker_keras",
    "torch": "benchmarks.worker_torch",
    "jax": "benchmarks.worker_jax",
    "keras-hub": "benchmarks.worker_keras",
    "timm": "benchmarks.worker_torch",
    "plain-jax": "benchmarks.worker_jax",
}
# How often a matrix product is measured in a round.
PRODUCTS = 3
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16")
TASKS = ("forward", "train")
# What the options may name.
NAMES = {
    "precisions": PRECISIONS,
    "tasks": TASKS,
    "backend": BARS,
    "activation": ACTIVATIONS,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and write its tables.

    Args:
        arguments: Those of the command line, None for the real ones.

    Returns:
        The exit code: 1 if bars are required and not reached.
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
    if not options.require:
        return 0
    missed = report.missed_bars(results, BARS[options.backend])
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
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
    add("--repeats", type=int, default=10, help="rounds that count")
    add("--threads", type=int, default=os.cpu_count(), help="of each package")
    add(
        "--compile",
        action="store_true",
        help="compile the models: by XLA in TensorFlow, by torch.compile in "
        "PyTorch; JAX always does",
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
    options = parser.parse_args(arguments)
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


def rivals(options: argparse.Namespace) -> list[str]:
    """Return the packages to compare with for which there is a place to run."""
    return [
        package
        for package in options.against
        if package != "timm" or options.torch_python
    ]


def libraries(packages: Iterable[str], backend: str) -> dict[str, str]:
    """Return the libraries whose matrix product is measured, by package."""
    found = {OURS: backend}
    if "timm" in packages and backend != "torch":
        found["timm"] = "torch"
    return found


def cases(options: argparse.Namespace) -> list[dict]:
    """Return what is measured: every model, task and precision.

    Training in bfloat16 keeps float32 weights: it is mixed_bfloat16.
    """
    sizes = {"forward": options.batch_sizes, "train": options.train_batch_sizes}
    return [
        {
            "model": model,
            "task": task,
            "precision": precision,
            "batch_size": size,
        }
        for model in options.models
        for task in options.tasks
        for precision in dict.fromkeys(
            "mixed_bfloat16" if (task, p) == ("train", "bfloat16") else p
            for p in options.precisions
        )
        for size in sizes[task]
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
    request = {
        **case,
        "config": dataclasses.asdict(config),
        "backend": options.backend,
        "threads": options.threads,
        "activation": options.activation,
        "compile": options.compile,
        "matrix_shape": MATRIX_SHAPE,
        "matrix_dtype": case["precision"].removeprefix("mixed_"),
    }
    with contextlib.ExitStack() as stack:
        workers = {}
        for package in packages:
            worker = start(package, request, options)
            workers[package] = stack.enter_context(worker)
            versions.update(worker.versions)
        seconds, product_seconds = measure(
            workers, options.repeats, libraries(packages, options.backend)
        )
    return report.Result(
        **case,
        flops=step_flops(config, case["task"], case["batch_size"]),
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
    module = WORKERS[options.backend if package == OURS else package]
    needs_torch = module == WORKERS["torch"]
    python = options.torch_python if needs_torch else sys.executable
    return Worker(module, {**request, "package": package}, python)


def measure(
    workers: dict[str, Worker], rounds: int, libraries: dict[str, str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of the steps, by package, and of the products.

    A round runs one step of every package, one after the other: only one
    process works at a time, and a machine that gets slower does so for all.
    Then it runs the matrix product in each library.

    Args:
        workers: By package.
        rounds: Number of rounds.
        libraries: Whose worker measures the product of which library.
    """
    steps = {package: [] for package in workers}
    products = {library: [] for library in libraries.values()}
    for _ in range(rounds):
        for package, worker in workers.items():
            steps[package].append(worker.run("step"))
        for package, library in libraries.items():
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
        f"{options.activation}, on {options.backend}, "
        f"compiled: {options.compile}",
    ]
    if "timm" in options.against and not options.torch_python:
        description.append("timm was left out: no --torch_python was given")
    columns = list(libraries(packages, options.backend).values())
    page = report.format_page(results, packages, columns, description)
    write_csv(options.out / "results.csv", report.csv_rows(results))
    (options.out / "results.md").write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
