"""Results of benchmarks.exports, and the tables made of them."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable

from benchmarks.harness import median_ratio
from keras_vit.tables import format_table


@dataclasses.dataclass(frozen=True)
class Contender:
    """A graph and the runtime that runs it.

    Args:
        package: Whose model it is, "ours" or "timm".
        action: Of the worker, a key of `worker_exports.ACTIONS`.
        file: Its file in the folder of the exports; with "{batch_size}" if
            there is one for each. Empty if it needs none.
        label: Its name in the table.
        precision: Of the products.
    """

    package: str
    action: str
    file: str
    label: str
    precision: str = "float32"


@dataclasses.dataclass(frozen=True)
class Result:
    """The times of one case, for every contender that was measured.

    Args:
        model: Such as "Ti/16".
        threads: That each contender might use.
        batch_size: Images that are classified at a time.
        seconds: Of each round, by contender.
    """

    model: str
    threads: int
    batch_size: int
    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median seconds of a batch."""
        return statistics.median(self.seconds[name])

    def fastest(self, package: str) -> str | None:
        """Return the fastest contender of a package, at float32."""
        names = float32_contenders(package, self.seconds)
        return min(names, key=self.median, default=None)

    def ratio(self, name: str) -> float | None:
        """Return the time of timm's fastest as a multiple of that of `name`.

        The median over the rounds; None if nothing of timm was measured.
        """
        reference = self.fastest("timm")
        if reference is None:
            return None
        return median_ratio(self.seconds[reference], self.seconds[name])


def float32_contenders(package: str, names: Iterable[str]) -> list[str]:
    """Return the names of the contenders of a package at float32."""
    return [
        name
        for name in names
        if CONTENDERS[name].package == package
        and CONTENDERS[name].precision == "float32"
    ]


def is_slower(result: Result, tolerance: float) -> bool:
    """Return whether our fastest is slower than timm's, at float32."""
    ours = result.fastest("ours")
    return ours is None or result.ratio(ours) < 1 - tolerance


def describe_fastest(result: Result) -> str:
    """Return a sentence on the fastest graphs of a case."""
    case = (
        f"{result.model}, {count(result.threads, 'thread')}, batch "
        f"{result.batch_size}"
    )
    found = [
        f"{package} {CONTENDERS[name].label} {1e3 * result.median(name):.2f} ms"
        for package in ("ours", "timm")
        if (name := result.fastest(package))
    ]
    sentence = f"Fastest at float32, {case}: {', '.join(found)}"
    if len(found) < 2:
        return sentence
    return f"{sentence}, ratio {result.ratio(result.fastest('ours')):.2f}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def format_page(results: list[Result], description: list[str]) -> str:
    """Return the page of the results, a table for each model."""
    lines = [
        *(f"- {line}" for line in description),
        "",
        "Median milliseconds per batch and, in brackets, the time of timm's",
        "fastest float32 graph divided by that of this one, the median of the",
        "rounds: above 1, this one is faster.",
    ]
    for model, cases in itertools.groupby(results, lambda r: r.model):
        cases = list(cases)
        columns = [f"{model}, graph", "runs in", "precision"] + [
            f"{count(r.threads, 'thread')}, batch {r.batch_size}" for r in cases
        ]
        rows = [
            [
                CONTENDERS[name].package,
                CONTENDERS[name].label,
                CONTENDERS[name].precision,
                *(cell(result, name) for result in cases),
            ]
            for name in cases[0].seconds
        ]
        lines += ["", format_table(columns, rows)]
    return "\n".join([*lines, "", *map(describe_fastest, results), ""])


def cell(result: Result, name: str) -> str:
    """Return the cell of the table for a contender in a case."""
    ratio = result.ratio(name)
    milliseconds = f"{1e3 * result.median(name):.2f}"
    return milliseconds if ratio is None else f"{milliseconds} ({ratio:.2f})"


def csv_rows(results: list[Result]) -> list[dict]:
    """Return a row for every case and contender."""
    rows = []
    for result in results:
        for name, seconds in result.seconds.items():
            ratio, median = result.ratio(name), result.median(name)
            rows.append(
                {
                    "model": result.model,
                    "threads": result.threads,
                    "batch_size": result.batch_size,
                    "contender": name,
                    "package": CONTENDERS[name].package,
                    "precision": CONTENDERS[name].precision,
                    "rounds": len(seconds),
                    "seconds": f"{median:.6g}",
                    "best_seconds": f"{min(seconds):.6g}",
                    "images_per_second": f"{result.batch_size / median:.6g}",
                    "ratio": "" if ratio is None else f"{ratio:.4f}",
                }
            )
    return rows


CONTENDERS = {
    "keras": Contender("ours", "keras", "ours.keras", "Keras"),
    "saved_model": Contender("ours", "tensorflow", "ours", "TensorFlow"),
    "litert": Contender(
        "ours", "litert", "float32_{batch_size}.tflite", "LiteRT"
    ),
    "litert_int8": Contender(
        "ours", "litert", "dynamic_int8_{batch_size}.tflite", "LiteRT", "int8"
    ),
    "onnx": Contender("ours", "onnxruntime", "ours.onnx", "ONNX Runtime"),
    "openvino": Contender("ours", "openvino", "ours.xml", "OpenVINO"),
    "timm": Contender("timm", "torch", "", "PyTorch, eager"),
    "timm_onnx": Contender(
        "timm", "onnxruntime", "timm_{batch_size}.onnx", "ONNX Runtime"
    ),
    "timm_openvino": Contender(
        "timm", "openvino", "timm_{batch_size}.onnx", "OpenVINO"
    ),
}
