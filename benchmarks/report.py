"""Results of the comparison, and the tables made of them."""

import csv
import dataclasses
import pathlib
import platform
import statistics
from collections.abc import Iterable

OURS = "ours"
CSV_COLUMNS = (
    "model",
    "task",
    "precision",
    "batch_size",
    "package",
    "rounds",
    "seconds",
    "images_per_second",
    "ratio",
    "floor_seconds",
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What one case took, for every package that was measured.

    Args:
        model: Such as "B/16".
        task: "forward" or "train".
        precision: "float32", "bfloat16" or "mixed_bfloat16".
        batch_size: Images of a step.
        floor_seconds: What the matrix products of a step would take at the
            rate of the machine.
        seconds: Of each round, by package. Round i of all packages was run
            one after the other.
    """

    model: str
    task: str
    precision: str
    batch_size: int
    floor_seconds: float
    seconds: dict[str, list[float]]

    def median(self, package: str) -> float:
        """Return the median seconds of a step."""
        return statistics.median(self.seconds[package])

    def images_per_second(self, package: str) -> float:
        """Return the images of a step over its median seconds."""
        return self.batch_size / self.median(package)

    def ratio(self, package: str) -> float:
        """Return how many times as long as ours `package` takes."""
        return median_ratio(self.seconds[package], self.seconds[OURS])


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median over the rounds of their seconds over ours.

    A machine that slows down slows down both sides of a round, which leaves
    their ratio.

    Example:
        >>> median_ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def slower_rows(
    results: Iterable[Result], package: str, tolerance: float
) -> list[Result]:
    """Return the results in which ours takes longer than `package`.

    Args:
        results: Those without `package` are passed over.
        package: The one to compare with.
        tolerance: How far below 1 the ratio may be.
    """
    return [
        result
        for result in results
        if package in result.seconds and result.ratio(package) < 1 - tolerance
    ]


def write_csv(path: pathlib.Path, results: Iterable[Result]):
    """Write one row for every result and package."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS)
        writer.writeheader()
        for result in results:
            for package, seconds in result.seconds.items():
                writer.writerow(
                    {
                        "model": result.model,
                        "task": result.task,
                        "precision": result.precision,
                        "batch_size": result.batch_size,
                        "package": package,
                        "rounds": len(seconds),
                        "seconds": f"{result.median(package):.6g}",
                        "images_per_second": (
                            f"{result.images_per_second(package):.6g}"
                        ),
                        "ratio": f"{result.ratio(package):.4f}",
                        "floor_seconds": f"{result.floor_seconds:.6g}",
                    }
                )


def markdown(
    results: list[Result],
    packages: list[str],
    rates: dict[tuple[str, str], float],
    description: list[str],
) -> str:
    """Return the page of the results.

    Args:
        results: Rows of the table.
        packages: Columns of the table; the first is ours.
        rates: FLOP/s of the matrix product, by library and precision.
        description: Lines on the machine and the run.
    """
    columns = ["model", "task", "precision", "batch"]
    columns += [f"{package} img/s" for package in packages]
    columns += [f"{package} / ours" for package in packages[1:]]
    columns += ["floor img/s", "ours / floor"]
    return "\n".join(
        [
            "# Speed",
            "",
            *(f"- {line}" for line in description),
            "",
            "Matrix product, GFLOP/s:",
            "",
            *markdown_table(
                ["library", "precision", "GFLOP/s"],
                [
                    [library, precision, f"{rate / 1e9:.0f}"]
                    for (library, precision), rate in rates.items()
                ],
            ),
            "",
            "Images per second from the median step. `x / ours` is the median",
            "over the rounds of the time of x over ours: above 1, ours is",
            "faster. The floor is what the matrix products alone would reach",
            "at the faster of the two rates above; `ours / floor` is the",
            "share of it that ours reaches.",
            "",
            *markdown_table(columns, [_cells(r, packages) for r in results]),
            "",
        ]
    )


def markdown_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    Example:
        >>> markdown_table(["a", "b"], [["1", "2"]])
        ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    lines = [f"| {' | '.join(row)} |" for row in [columns, *rows]]
    lines.insert(1, "|" + "---|" * len(columns))
    return lines


def describe_machine(threads: int, versions: dict[str, str]) -> list[str]:
    """Return lines on the processor and on the versions of what was run."""
    versions = {"python": platform.python_version(), **versions}
    return [
        f"Processor: {processor_name()}, {threads} threads",
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


def _cells(result, packages):
    floor = result.batch_size / result.floor_seconds
    share = result.images_per_second(OURS) / floor
    return [
        result.model,
        result.task,
        result.precision,
        str(result.batch_size),
        *(f"{result.images_per_second(p):.2f}" for p in packages),
        *(f"{result.ratio(p):.2f}" for p in packages[1:]),
        f"{floor:.2f}",
        f"{share:.0%}",
    ]
