"""Measure exported graphs beside timm's: python -m benchmarks.exports."""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable

from benchmarks.compare import model_config
from benchmarks.flops import num_parameters
from benchmarks.harness import (
    add_csv_option,
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
from keras_vit import VARIANTS, __version__
from keras_vit.layers.mlp import ACTIVATIONS
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


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and write its table.

    Args:
        arguments: Those of the command line, None for the real ones.

    Returns:
        The exit code: 1 if ours has to be not slower, and is slower.
    """
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
                result = measure_case(
                    model, threads, batch_size, folder, options, versions
                )
                results.append(result)
                # After each case: an interrupted run keeps its results.
                write_table(options.csv, csv_rows(results))
                print(describe_fastest(result), flush=True)
    print(format_page(results, run_lines(options, versions, load)))
    if not options.require_not_slower:
        return 0
    return 1 if any(is_slower(r, options.tolerance) for r in results) else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_speed_options(add, models="Ti/16")
    add(
        "--require_not_slower",
        action="store_true",
        help="exit with 1 if ours is slower in any row",
    )
    add("--tolerance", type=float, default=0.0, help="of that requirement")
    add(
        "--batch_sizes",
        type=split_numbers,
        default="1,8",
        help="images at a time",
    )
    add(
        "--threads",
        type=split_numbers,
        default="1,2",
        help="of each contender",
    )
    add(
        "--contenders",
        type=split_names,
        default=",".join(CONTENDERS),
        help="who takes part; those of timm need --torch_python",
    )
    add("--rounds", type=int, default=30, help="predictions timed, of each")
    add_csv_option(add, "exports")
    options = parser.parse_args(arguments)
    check_contenders(parser, options)
    return options


def check_contenders(
    parser: argparse.ArgumentParser, options: argparse.Namespace
):
    """End the program if options are wrong; drop timm without its Python."""
    check_speed_options(
        parser, options, {"contenders": CONTENDERS, "activation": ACTIVATIONS}
    )
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more: {options.rounds}")
    if not options.torch_python:
        options.contenders = [
            name
            for name in options.contenders
            if CONTENDERS[name].package != "timm"
        ]
    comparable = float32_contenders("timm", options.contenders)
    if options.require_not_slower and not comparable:
        parser.error(
            "--require_not_slower needs --torch_python and a contender of timm "
            "in float32"
        )


def write_files(
    model: str, folder: str, options: argparse.Namespace, versions: dict
):
    """Write the files that the contenders run to `folder`.

    Args:
        model: A key of VARIANTS.
        folder: Where the contenders of this model find their files.
        options: Of the command line.
        versions: Takes the versions of what wrote them.
    """
    files = {}
    for contender in map(CONTENDERS.get, options.contenders):
        if contender.file:
            files.setdefault(contender.package, {}).update(
                (contender.file.format(batch_size=batch_size), None)
                for batch_size in options.batch_sizes
            )
    for package, paths in files.items():
        case = {
            **model_request(model, options),
            "package": package,
            "action": f"write_{package}",
            "folder": folder,
            "files": list(paths),
            "threads": max(options.threads),
        }
        with Worker(
            "benchmarks.worker_exports", case, python(case, options)
        ) as worker:
            versions.update(worker.versions)


def model_request(model: str, options: argparse.Namespace) -> dict:
    """Return the description of a model for a worker, JSON-able."""
    config = model_config(model, VARIANTS[model].config.image_size)
    return {
        "config": dataclasses.asdict(config),
        "num_parameters": num_parameters(config),
        "precision": "float32",
        "activation": options.activation,
        "steps": 1,
    }


def python(case: dict, options: argparse.Namespace) -> str:
    """Return the interpreter that has the packages of the action."""
    needs_torch = case["action"] in ("write_timm", "torch")
    return options.torch_python if needs_torch else sys.executable


def measure_case(
    model: str,
    threads: int,
    batch_size: int,
    folder: str,
    options: argparse.Namespace,
    versions: dict,
) -> Result:
    """Return the result of a case.

    Args:
        model: A key of VARIANTS.
        threads: Of each contender.
        batch_size: Images that are classified at a time.
        folder: Of the files.
        options: Of the command line.
        versions: Takes the versions of what was run.
    """
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in options.contenders:
            case = {
                **model_request(model, options),
                **describe_contender(CONTENDERS[name], batch_size, folder),
                "threads": threads,
            }
            case["shape"] = image_shape(case)
            worker = Worker(
                "benchmarks.worker_exports", case, python(case, options)
            )
            workers[name] = stack.enter_context(worker)
            versions.update(worker.versions)
        return Result(
            model, threads, batch_size, measure(workers, options.rounds)
        )


def describe_contender(
    contender: Contender, batch_size: int, folder: str
) -> dict:
    """Return the description of a contender for a worker, JSON-able."""
    file = contender.file.format(batch_size=batch_size)
    return {
        "package": contender.package,
        "action": contender.action,
        "path": os.path.join(folder, file),
        "batch_size": batch_size,
    }


def image_shape(case: dict) -> tuple[int, ...]:
    """Return the shape of a batch: timm's has its channels first."""
    config = case["config"]
    height_width, channels = config["image_size"], config["channels"]
    if case["package"] == "timm":
        return (case["batch_size"], channels, *height_width)
    return (case["batch_size"], *height_width, channels)


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by contender.

    In a round, all contenders run one after the other. Each round begins with
    the next contender, so none always follows the same one. The others have
    filled the caches, so a contender runs twice and the second run counts.

    Args:
        workers: By contender.
        rounds: Number of rounds.
    """
    seconds = {name: [] for name in workers}
    turns = itertools.cycle(workers)
    for _ in range(rounds):
        for name in itertools.islice(turns, len(workers)):
            workers[name].run("step")
            seconds[name].append(workers[name].run("step"))
        next(turns)
    return seconds


def run_lines(
    options: argparse.Namespace, versions: dict, load: float
) -> list[str]:
    """Return lines on the machine, the versions and the run."""
    lines = [
        *describe_machine(versions),
        f"Run: {datetime.date.today()}, {count(options.rounds, 'round')}, "
        f"GELU of ours: {options.activation}, load before: {load:.1f}",
    ]
    if not options.torch_python:
        lines.append("timm was left out: no --torch_python was given")
    return lines


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


if __name__ == "__main__":
    sys.exit(main())
