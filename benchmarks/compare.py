"""Measure keras_vit beside other packages: python -m benchmarks.compare."""

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable

from benchmarks.flops import MATRIX_SHAPE, matrix_flops, step_flops
from benchmarks.harness import (
    OURS,
    add_speed_options,
    check_speed_options,
    describe_machine,
    make_parser,
    median_ratio,
    split_names,
    split_numbers,
    write_table,
)
from benchmarks.pipe import Worker
from keras_vit import VARIANTS, ViTConfig, __version__
from keras_vit.files import atomic_write
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.tables import format_table


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

    def median(self, package: str) -> float:
        """Return the median seconds of a step."""
        return statistics.median(self.seconds[package])

    def images_per_second(self, package: str) -> float:
        """Return the images of a step over its median seconds."""
        return self.batch_size / self.median(package)

    def ratio(self, package: str) -> float:
        """Return the time of `package` as a multiple of ours."""
        return median_ratio(self.seconds[package], self.seconds[OURS])

    def ratio_quartiles(self, package: str) -> tuple[float, float]:
        """Return the quartiles over the rounds of that multiple."""
        rounds = zip(self.seconds[package], self.seconds[OURS], strict=True)
        ratios = [theirs / ours for theirs, ours in rounds]
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        first, _, third = statistics.quantiles(ratios, method="inclusive")
        return first, third

    def matrix_rate(self, library: str) -> float:
        """Return the FLOP/s of the product of matrices in `library`."""
        seconds = statistics.median(self.product_seconds[library])
        return matrix_flops(*self.matrix_shape) / seconds

    def peak_share(self, package: str) -> float | None:
        """Return the share of the peak FLOP/s in use, the MFU; None if unknown.

        Only the products that a step needs count.
        """
        if self.peak_flops is None:
            return None
        return self.flops / self.median(package) / self.peak_flops

    @property
    def best_matrix_rate(self) -> float:
        """FLOP/s of the product in the library that is faster at it."""
        return max(map(self.matrix_rate, self.product_seconds))

    @property
    def floor_seconds(self) -> float:
        """The seconds of the products of a step at `best_matrix_rate`."""
        return self.flops / self.best_matrix_rate


@dataclasses.dataclass(frozen=True)
class Bar:
    """The least time that a package must take, as a multiple of ours.

    Args:
        row: In each row.
        mean: In the geometric mean of all rows.
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
COMPARED_PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16")
TASKS = ("forward", "train")
# The names that the options accept.
NAMES = {
    "precisions": COMPARED_PRECISIONS,
    "tasks": TASKS,
    "backend": BARS,
    "activation": ACTIVATIONS,
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
    missed = missed_bars(results, BARS[options.backend])
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
) -> Result:
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
    return Result(
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


def missed_bars(results: Iterable[Result], bars: dict[str, Bar]) -> list[str]:
    """Return a line for each bar that is not reached.

    Args:
        results: All of them.
        bars: By package; results without it are passed over.
    """
    lines = []
    for package, bar in bars.items():
        rows = [x for x in results if package in x.seconds]
        lines += [
            f"{x.model} {x.task} {x.precision}, batch {x.batch_size}: "
            f"{package} / ours = {x.ratio(package):.3f}, below {bar.row}"
            for x in rows
            if x.ratio(package) < bar.row
        ]
        mean = statistics.geometric_mean(
            [x.ratio(package) for x in rows] or [1]
        )
        if rows and mean < bar.mean:
            lines.append(
                f"mean of {len(rows)} rows: "
                f"{package} / ours = {mean:.3f}, below {bar.mean}"
            )
    return lines


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
            "seconds": f"{result.median(package):.6g}",
            "images_per_second": f"{result.images_per_second(package):.6g}",
            "ratio": f"{result.ratio(package):.4f}",
            "matrix_gflops": f"{result.best_matrix_rate / 1e9:.6g}",
            "floor_seconds": f"{result.floor_seconds:.6g}",
            "peak_mib": round(result.memory[package] / 2**20),
            "mfu": _format_share(result.peak_share(package)),
        }
        for result in results
        for package, seconds in result.seconds.items()
    ]


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
    return "\n".join(
        [
            "# Speed",
            "",
            *(f"- {line}" for line in description),
            "",
            "Images per second of the median step. `x / ours` is the time of x",
            "divided by ours, the median of the rounds, with the quartiles:",
            "above 1, ours is faster.",
            "",
            _format_speed(results, packages),
            "",
            "GFLOP/s are those of one matrix product of",
            f"{_format_shapes(results)}, measured in the same rounds. The",
            "limit is what the products of the model alone would reach at the",
            "faster of these rates; `ours / limit` is the share of it that",
            "ours reaches. MiB are the peak memory of the process beyond its",
            "imports, of a GPU what was in use. MFU is the share of the peak",
            "of --peak_tflops that these products reach.",
            "",
            _format_limits(results, packages, libraries),
            "",
        ]
    )


CASE_COLUMNS = ["model", "task", "batch"]


def _case_cells(result):
    task = f"{result.task}, {result.precision}"
    return [result.model, task, result.batch_size]


def _format_speed(results, packages):
    columns = [f"{package} img/s" for package in packages]
    columns += [f"{package} / ours" for package in packages[1:]]
    rows = [
        [
            *_case_cells(result),
            *(f"{result.images_per_second(p):.2f}" for p in packages),
            *(_ratio_cell(result, p) for p in packages[1:]),
        ]
        for result in results
    ]
    return format_table(CASE_COLUMNS + columns, rows)


def _format_limits(results, packages, libraries):
    columns = [f"{library} GFLOP/s" for library in libraries]
    columns += ["limit img/s", "ours / limit"]
    columns += [f"{package} MiB" for package in packages]
    if any(result.peak_flops for result in results):
        columns += [f"{package} MFU" for package in packages]
    rows = [_limit_cells(result, packages, libraries) for result in results]
    return format_table(CASE_COLUMNS + columns, rows)


def _limit_cells(result, packages, libraries):
    limit = result.batch_size / result.floor_seconds
    share = result.images_per_second(OURS) / limit
    measured = packages if result.peak_flops else []
    return [
        *_case_cells(result),
        *(f"{result.matrix_rate(name) / 1e9:.0f}" for name in libraries),
        f"{limit:.2f}",
        f"{share:.0%}",
        *(round(result.memory[p] / 2**20) for p in packages),
        *(_format_share(result.peak_share(p)) for p in measured),
    ]


def _ratio_cell(result, package):
    first, third = result.ratio_quartiles(package)
    return f"{result.ratio(package):.2f} ({first:.2f} to {third:.2f})"


def _format_share(share):
    return "" if share is None else f"{share:.3f}"


def _format_shapes(results):
    """Return the shapes of the products, such as "(2, 3) x (3, 4)"."""
    shapes = dict.fromkeys(result.matrix_shape for result in results)
    return ", ".join(f"({a}, {b}) x ({b}, {c})" for a, b, c in shapes)


if __name__ == "__main__":
    sys.exit(main())
