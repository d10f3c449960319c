"""Measure keras_vit beside other packages: python -m benchmarks.compare."""

import argparse
import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Iterable

from benchmarks import compare_report as report
from benchmarks.compare_options import BARS, parse
from benchmarks.flops import step_flops
from benchmarks.harness import (
    OURS,
    describe_machine,
    write_table,
)
from benchmarks.serve import Worker
from keras_vit import VARIANTS, ViTConfig, __version__
from keras_vit.files import atomic_write

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
NUM_PRODUCTS = 3


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
        # After each case, so that an interrupted run keeps its results.
        page = write_comparison(options, results, packages, versions)
        print(page.splitlines()[-1], flush=True)
    print(page)
    if not options.require:
        return 0
    missed = report.missed_bars(results, BARS[options.backend])
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


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
    """Return the cases to measure: every model, task and precision.

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
        "config": {
            **dataclasses.asdict(config),
            "use_remat": options.use_remat,
        },
        "backend": options.backend,
        "threads": options.threads,
        "activation": options.activation,
        "compile": options.compile,
        "steps": options.steps,
        "matrix_shape": options.matrix_shape,
        "matrix_dtype": case["precision"].removeprefix("mixed_"),
    }
    with contextlib.ExitStack() as stack:
        workers = {}
        for package in packages:
            worker = start_worker(package, request, options)
            workers[package] = stack.enter_context(worker)
            versions.update(worker.versions)
        seconds, product_seconds = measure(
            workers, options.repeats, libraries(packages, options.backend)
        )
        memory = {name: x.peak_memory() for name, x in workers.items()}
        device = workers[OURS].device()
    for package, found in seconds.items():
        seconds[package] = [value / options.steps for value in found]
    return report.Result(
        **case,
        memory=memory,
        device=device,
        matrix_shape=options.matrix_shape,
        peak_flops=options.peak_tflops and 1e12 * options.peak_tflops,
        flops=step_flops(config, case["task"], case["batch_size"]),
        seconds=seconds,
        product_seconds=product_seconds,
    )


def model_config(model: str, image_size: int) -> ViTConfig:
    """Return the configuration that all packages build."""
    return dataclasses.replace(
        VARIANTS[model].config, image_size=image_size, dropout_rate=0.0
    )


def start_worker(
    package: str, request: dict, options: argparse.Namespace
) -> Worker:
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
                workers[package].run("product") for _ in range(NUM_PRODUCTS)
            ]
    return steps, products


def write_comparison(
    options: argparse.Namespace,
    results: list[report.Result],
    packages: list[str],
    versions: dict,
) -> str:
    """Write results.csv and results.md and return the latter."""
    devices = sorted({f"GPU: {x.device}" for x in results if x.device})
    description = [
        *describe_machine(versions, options.threads),
        *devices,
        f"Run: {datetime.date.today()}, {options.repeats} rounds of "
        f"{options.steps} steps, images of "
        f"{options.image_size}x{options.image_size}, GELU of ours: "
        f"{options.activation}, on {options.backend}, "
        f"compiled: {options.compile}, use_remat: {options.use_remat}",
    ]
    if "timm" in options.against and not options.torch_python:
        description.append("timm was left out: no --torch_python was given")
    columns = list(libraries(packages, options.backend).values())
    page = report.format_page(results, packages, columns, description)
    write_table(options.out / "results.csv", report.csv_rows(results))
    with atomic_write(options.out / "results.md") as draft:
        draft.write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
