"""Measure exported graphs beside timm's: python -m benchmarks.exports."""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import os
import pathlib
import statistics
import sys
import tempfile
from typing import NamedTuple

from benchmarks.compare import model_config
from benchmarks.flops import num_parameters
from benchmarks.harness import (
    describe_machine,
    make_parser,
    median_ratio,
    names_of,
    speed_options,
    split_numbers,
    write_table,
)
from benchmarks.pipe import Worker
from keras_vit import VARIANTS, __version__
from keras_vit.tables import format_table


class Contender(NamedTuple):
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


@dataclasses.dataclass(frozen=True)
class Result:
    """The times of one case: the seconds of each round, by contender."""

    model: str
    threads: int
    batch_size: int
    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median seconds of a batch."""
        return statistics.median(self.seconds[name])

    def fastest(self, package: str) -> str | None:
        """Return the fastest contender of a package, at float32."""
        names = [
            name
            for name in self.seconds
            if CONTENDERS[name].package == package
            and CONTENDERS[name].precision == "float32"
        ]
        return min(names, key=self.median, default=None)

    def ratio(self, name: str) -> float | None:
        """Return the time of timm's fastest as a multiple of that of `name`.

        The median over the rounds; None if nothing of timm was measured.
        """
        reference = self.fastest("timm")
        if reference is None:
            return None
        return median_ratio(self.seconds[reference], self.seconds[name])


def main(arguments: list[str] | None = None):
    """Run the comparison, and print its page."""
    options = parse(arguments)
    load = os.getloadavg()[0]  # Before we add to it.
    versions = {"keras_vit": __version__}
    results = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            write_files(model, folder, options, versions)
            for threads, batch_size in itertools.product(
                options.threads, options.batch_sizes
            ):
                case = model, threads, batch_size
                results.append(measure_case(*case, folder, options, versions))
                # After each case: an interrupted run keeps its results.
                write_table(options.csv, csv_rows(results))
                print(describe_fastest(results[-1]), flush=True)
    description = [
        *describe_machine(versions),
        f"Run: {datetime.date.today()}, {count(options.rounds, 'round')}, "
        f"GELU of ours: {options.activation}, load before: {load:.1f}",
    ]
    if not options.torch_python:
        description.append("timm was left out: no --torch_python was given")
    print(format_page(results, description))


OPTIONS = [
    *speed_options("Ti/16"),
    ("--batch_sizes", split_numbers, "1,8", "images at a time"),
    ("--threads", split_numbers, "1,2", "of each contender"),
    (
        "--contenders",
        names_of(CONTENDERS),
        ",".join(CONTENDERS),
        "who takes part; those of timm need --torch_python",
    ),
    ("--rounds", int, 30, "predictions timed, of each"),
    ("--csv", pathlib.Path, "benchmarks/results/exports.csv", "file to write"),
]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    options = make_parser(__doc__, OPTIONS).parse_args(arguments)
    if not options.torch_python:
        options.contenders = [
            name
            for name in options.contenders
            if CONTENDERS[name].package != "timm"
        ]
    return options


def write_files(
    model: str, folder: str, options: argparse.Namespace, versions: dict
):
    """Write the files that the contenders run, in a worker of each package."""
    files = {}
    for contender in map(CONTENDERS.get, options.contenders):
        if contender.file:
            files.setdefault(contender.package, {}).update(
                (contender.file.format(batch_size=batch_size), None)
                for batch_size in options.batch_sizes
            )
    for package, paths in files.items():
        case = {
            "package": package,
            "action": f"write_{package}",
            "folder": folder,
            "files": list(paths),
            "threads": max(options.threads),
        }
        with start_worker(model, case, options) as worker:
            versions.update(worker.versions)


def start_worker(model: str, case: dict, options: argparse.Namespace):
    """Return a worker with the packages that the action of a case needs."""
    config = model_config(model, VARIANTS[model].config.image_size)
    case = {
        **case,
        "config": dataclasses.asdict(config),
        "num_parameters": num_parameters(config),
        "precision": "float32",
        "activation": options.activation,
        "steps": 1,
    }
    needs_torch = case["action"] in ("write_timm", "torch")
    python = options.torch_python if needs_torch else sys.executable
    return Worker("benchmarks.worker_exports", case, python)


def measure_case(
    model: str,
    threads: int,
    batch_size: int,
    folder: str,
    options: argparse.Namespace,
    versions: dict,
) -> Result:
    """Return the result of a case; add the versions of what was run."""
    config = VARIANTS[model].config
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in options.contenders:
            contender = CONTENDERS[name]
            file = contender.file.format(batch_size=batch_size)
            shape = [batch_size, *config.image_size]
            # Timm's has its channels first.
            place = 1 if contender.package == "timm" else 3
            shape.insert(place, config.channels)
            case = {
                "package": contender.package,
                "action": contender.action,
                "path": os.path.join(folder, file),
                "batch_size": batch_size,
                "threads": threads,
                "shape": shape,
            }
            worker = start_worker(model, case, options)
            workers[name] = stack.enter_context(worker)
            versions.update(worker.versions)
        seconds = measure(workers, options.rounds)
    return Result(model, threads, batch_size, seconds)


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by contender.

    In a round, all contenders run one after the other. Each round begins with
    the next contender, so none always follows the same one. The others have
    filled the caches, so a contender runs twice and the second run counts.
    """
    seconds = {name: [] for name in workers}
    turns = itertools.cycle(workers)
    for _ in range(rounds):
        for name in itertools.islice(turns, len(workers)):
            workers[name].ask("step")
            seconds[name].append(workers[name].ask("step"))
        next(turns)
    return seconds


def describe_fastest(result: Result) -> str:
    """Return a sentence on the fastest graphs of a case."""
    found = [
        f"{package} {CONTENDERS[name].label} {1e3 * result.median(name):.2f} ms"
        for package in ("ours", "timm")
        if (name := result.fastest(package))
    ]
    sentence = (
        f"Fastest at float32, {result.model}, "
        f"{count(result.threads, 'thread')}, batch {result.batch_size}: "
        f"{', '.join(found)}"
    )
    if len(found) < 2:
        return sentence
    return f"{sentence}, ratio {result.ratio(result.fastest('ours')):.2f}"


def count(number: int, noun: str) -> str:
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

    def cell(result, name):
        ratio = result.ratio(name)
        share = "" if ratio is None else f" ({ratio:.2f})"
        return f"{1e3 * result.median(name):.2f}{share}"

    for model, cases in itertools.groupby(results, lambda r: r.model):
        cases = list(cases)
        columns = [f"{model}, graph", "runs in", "precision"] + [
            f"{count(r.threads, 'thread')}, batch {r.batch_size}" for r in cases
        ]
        rows = []
        for name in cases[0].seconds:
            package, _, _, label, precision = CONTENDERS[name]
            cells = [cell(result, name) for result in cases]
            rows.append([package, label, precision, *cells])
        lines += ["", format_table(columns, rows)]
    return "\n".join([*lines, "", *map(describe_fastest, results), ""])


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


if __name__ == "__main__":
    main()
