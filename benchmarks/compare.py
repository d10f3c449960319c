"""Measure keras_vit beside other packages: python -m benchmarks.compare."""

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import statistics
import sys
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.flops import MATRIX_SHAPE, matrix_flops, step_flops
from benchmarks.harness import (
    OURS,
    PRECISIONS,
    TASKS,
    describe_machine,
    make_parser,
    median_ratio,
    names_of,
    quartiles,
    speed_options,
    split_numbers,
    write_table,
)
from benchmarks.pipe import Worker
from keras_vit import VARIANTS, ViTConfig, __version__
from keras_vit.files import atomic_write
from keras_vit.tables import format_table


class Bar(NamedTuple):
    """The least time that a package must take, as a multiple of ours.

    In each row, and in the geometric mean of all rows.
    """

    row: float
    mean: float


# By the backend that ours runs on: the packages to compare with, and the least
# time that they must take, as a multiple of ours, with --require.
BARS = {
    "tensorflow": {
        "keras-hub": Bar(row=1.05, mean=1.15),
        "timm": Bar(row=1.0, mean=1.0),
    },
    "torch": {"timm": Bar(row=1.0, mean=1.0)},
    "jax": {
        "plain-jax": Bar(row=1.15, mean=1.15),
        "timm": Bar(row=1.0, mean=1.1),
    },
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
NUM_PRODUCTS = 3


@dataclasses.dataclass(frozen=True)
class Result:
    """The times of one case, for every package that was measured.

    Args:
        model: Such as "B/16".
        task: "forward" or "train".
        precision: "float32", "bfloat16" or "mixed_bfloat16".
        batch_size: Images of a step.
        flops: Of the matrix products of a step.
        seconds: Of each round, by package. Round i of all packages was run
            one after the other.
        product_seconds: Of a product of matrices of `matrix_shape`, by
            library. Measured in the same rounds.
        memory: Peak bytes by package: on the GPU if one is used, else of the
            process beyond its imports; 0 where the system does not tell.
        device: Name of the GPU, "" for none.
        matrix_shape: Rows, inner size and columns of the product.
        peak_flops: FLOP/s that the maker of the GPU names, None if unknown.
    """

    model: str
    task: str
    precision: str
    batch_size: int
    flops: int
    seconds: dict[str, list[float]]
    product_seconds: dict[str, list[float]]
    memory: dict[str, int]
    device: str = ""
    matrix_shape: tuple[int, int, int] = MATRIX_SHAPE
    peak_flops: float | None = None

    def images_per_second(self, package: str) -> float:
        """Return the images of a step over its median seconds."""
        return self.batch_size / statistics.median(self.seconds[package])

    def ratio(self, package: str) -> float:
        """Return the time of `package` as a multiple of ours."""
        return median_ratio(self.seconds[package], self.seconds[OURS])

    def matrix_rate(self, library: str) -> float:
        """Return the FLOP/s of the product of matrices in `library`."""
        seconds = statistics.median(self.product_seconds[library])
        return matrix_flops(*self.matrix_shape) / seconds

    def peak_share(self, package: str) -> str:
        """Return the share of the peak FLOP/s in use, the MFU; "" if unknown.

        Only the products that a step needs count.
        """
        if self.peak_flops is None:
            return ""
        seconds = statistics.median(self.seconds[package])
        return f"{self.flops / seconds / self.peak_flops:.3f}"

    @property
    def best_matrix_rate(self) -> float:
        """FLOP/s of the product in the library that is faster at it."""
        return max(map(self.matrix_rate, self.product_seconds))

    @property
    def floor_seconds(self) -> float:
        """The seconds of the products of a step at `best_matrix_rate`."""
        return self.flops / self.best_matrix_rate


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and write its tables; 1 if a bar is missed."""
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
    missed = missed_bars(results, BARS[options.backend])
    if options.require:
        for line in missed:
            print(f"MISSED: {line}")
    return int(options.require and bool(missed))


# The option, its type or choices, its default and its help.
OPTIONS = [
    *speed_options("S/16,B/16"),
    ("--backend", BARS, "tensorflow", "that ours runs on"),
    ("--precisions", names_of(PRECISIONS), "float32,bfloat16", "of all models"),
    ("--tasks", names_of(TASKS), "forward,train", "forward, train"),
    (
        "--against",
        names_of(WORKERS),
        None,
        "packages; by default all there are",
    ),
    ("--use_remat", bool, False, "ours trains with less memory"),
    ("--image_size", int, 224, "side in pixels"),
    ("--batch_sizes", split_numbers, "8", "images of a forward pass"),
    ("--train_batch_sizes", split_numbers, "16", "images of a training step"),
    ("--repeats", int, 10, "rounds that count"),
    ("--steps", int, 1, "of a round; only the last one is waited for"),
    ("--threads", int, os.cpu_count(), "of each package"),
    ("--compile", bool, False, "by XLA or torch.compile; JAX always does"),
    ("--matrix_size", int, None, "of the product that is measured"),
    ("--peak_tflops", float, None, "of the GPU, by its maker; adds the MFU"),
    ("--require", bool, False, "exit with 1 if ours misses a bar"),
    ("--out", pathlib.Path, "build/benchmark", "folder to fill"),
]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, OPTIONS)
    options = parser.parse_args(arguments)
    options.matrix_shape = (
        (options.matrix_size,) * 3 if options.matrix_size else MATRIX_SHAPE
    )
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
    return [x for x in options.against if x != "timm" or options.torch_python]


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
    found = [
        {
            "model": model,
            "task": task,
            "precision": "mixed_bfloat16"
            if (task, precision) == ("train", "bfloat16")
            else precision,
            "batch_size": size,
        }
        for model in options.models
        for task in options.tasks
        for precision in options.precisions
        for size in sizes[task]
    ]
    return list({tuple(case.values()): case for case in found}.values())


def measure_case(
    case: dict, packages: list[str], options: argparse.Namespace, versions: dict
) -> Result:
    """Return the result of a case; add the versions of what was run."""
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
        memory = {name: x.ask("memory") for name, x in workers.items()}
        device = workers[OURS].ask("device")
    return Result(
        **case,
        memory=memory,
        device=device,
        matrix_shape=options.matrix_shape,
        peak_flops=options.peak_tflops and 1e12 * options.peak_tflops,
        flops=step_flops(config, case["task"], case["batch_size"]),
        seconds={
            package: [value / options.steps for value in found]
            for package, found in seconds.items()
        },
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
    """
    steps = {package: [] for package in workers}
    products = {library: [] for library in libraries.values()}
    for _ in range(rounds):
        for package, worker in workers.items():
            steps[package].append(worker.ask("step"))
        for package, library in libraries.items():
            products[library] += [
                workers[package].ask("product") for _ in range(NUM_PRODUCTS)
            ]
    return steps, products


def missed_bars(results: Iterable[Result], bars: dict[str, Bar]) -> list[str]:
    """Return a line for each bar that is not reached."""
    lines = []
    for package, bar in bars.items():
        rows = [x for x in results if package in x.seconds]
        ratios = [x.ratio(package) for x in rows]
        lines += [
            f"{x.model} {x.task} {x.precision}, batch {x.batch_size}: "
            f"{package} / ours = {ratio:.3f}, below {bar.row}"
            for x, ratio in zip(rows, ratios)
            if ratio < bar.row
        ]
        mean = statistics.geometric_mean(ratios or [bar.mean])
        if mean < bar.mean:
            lines.append(
                f"mean of {len(rows)} rows: "
                f"{package} / ours = {mean:.3f}, below {bar.mean}"
            )
    return lines


def write_comparison(
    options: argparse.Namespace,
    results: list[Result],
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
    page = format_page(results, packages, columns, description)
    write_table(options.out / "results.csv", csv_rows(results))
    with atomic_write(options.out / "results.md") as draft:
        draft.write_text(page, encoding="utf-8")
    return page


def csv_rows(results: Iterable[Result]) -> list[dict]:
    """Return one row for every result and package."""
    return [
        {
            "model": result.model,
            "task": result.task,
            "precision": result.precision,
            "batch_size": result.batch_size,
            "package": package,
            "rounds": len(seconds),
            "seconds": f"{statistics.median(seconds):.6g}",
            "images_per_second": f"{result.images_per_second(package):.6g}",
            "ratio": f"{result.ratio(package):.4f}",
            "matrix_gflops": f"{result.best_matrix_rate / 1e9:.6g}",
            "floor_seconds": f"{result.floor_seconds:.6g}",
            "peak_mib": round(result.memory[package] / 2**20),
            "mfu": result.peak_share(package),
        }
        for result in results
        for package, seconds in result.seconds.items()
    ]


PAGE = """# Speed

{description}

Images per second of the median step. `x / ours` is the time of x
divided by ours, the median of the rounds, with the quartiles:
above 1, ours is faster.

{speed}

GFLOP/s are those of one matrix product of
{shapes}, measured in the same rounds. The
limit is what the products of the model alone would reach at the
faster of these rates; `ours / limit` is the share of it that
ours reaches. MiB are the peak memory of the process beyond its
imports, of a GPU what was in use. MFU is the share of the peak
of --peak_tflops that these products reach.

{limits}
"""


def format_page(
    results: list[Result],
    packages: list[str],
    libraries: list[str],
    description: list[str],
) -> str:
    """Return the Markdown page of the results.

    Args:
        results: Rows of both tables, one of speed and one of limits and memory.
        packages: Columns of the tables; the first is ours.
        libraries: Those whose product of matrices was measured.
        description: Lines on the machine and the run.
    """
    has_peak = any(result.peak_flops for result in results)
    case = ["model", "task", "batch"]
    speed_columns = [
        *case,
        *(f"{package} img/s" for package in packages),
        *(f"{package} / ours" for package in packages[1:]),
    ]
    limit_columns = [
        *case,
        *(f"{library} GFLOP/s" for library in libraries),
        *("limit img/s", "ours / limit"),
        *(f"{package} MiB" for package in packages),
        *(f"{package} MFU" for package in packages if has_peak),
    ]
    speeds, limits = [], []
    for x in results:
        case = x.model, f"{x.task}, {x.precision}", x.batch_size
        limit = x.batch_size / x.floor_seconds
        share = x.images_per_second(OURS) / limit
        speeds.append(
            [
                *case,
                *(f"{x.images_per_second(p):.2f}" for p in packages),
                *(ratio_cell(x, p) for p in packages[1:]),
            ]
        )
        limits.append(
            [
                *case,
                *(f"{x.matrix_rate(name) / 1e9:.0f}" for name in libraries),
                *(f"{limit:.2f}", f"{share:.0%}"),
                *(round(x.memory[p] / 2**20) for p in packages),
                *(x.peak_share(p) for p in packages if has_peak),
            ]
        )
    # Such as "(2, 3) x (3, 4)".
    shapes = dict.fromkeys(x.matrix_shape for x in results)
    shapes = [f"({a}, {b}) x ({b}, {c})" for a, b, c in shapes]
    return PAGE.format(
        description="\n".join(f"- {line}" for line in description),
        speed=format_table(speed_columns, speeds),
        shapes=", ".join(shapes),
        limits=format_table(limit_columns, limits),
    )


def ratio_cell(result: Result, package: str) -> str:
    rounds = zip(result.seconds[package], result.seconds[OURS])
    low, middle, high = quartiles(theirs / ours for theirs, ours in rounds)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
