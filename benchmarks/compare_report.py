"""Results of benchmarks.compare, and the tables made of them."""

import dataclasses
import statistics
from collections.abc import Iterable

from benchmarks.flops import MATRIX_SHAPE, matrix_flops
from benchmarks.harness import OURS, median_ratio
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
