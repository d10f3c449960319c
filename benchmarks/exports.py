"""Measure exported graphs beside timm's: python -m benchmarks.exports."""

import argparse
import contextlib
import csv
import dataclasses
import datetime
import itertools
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

from benchmarks.compare import model_config, names
from benchmarks.flops import num_parameters
from benchmarks.report import describe_machine, markdown_table, median_ratio
from benchmarks.serve import Worker
from keras_vit import VARIANTS, __version__
from keras_vit.layers.mlp_block import GELUS
from keras_vit.tables import pick

CSV_COLUMNS = (
    "model",
    "threads",
    "batch_size",
    "contender",
    "package",
    "precision",
    "rounds",
    "seconds",
    "best_seconds",
    "images_per_second",
    "ratio",
)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A graph and what runs it.

    Args:
        package: Whose model it is, "ours" or "timm".
        action: Of the worker, a key of `worker_exports.ACTIONS`.
        file: What it runs, in the folder of the exports; with "{batch_size}"
            if there is one for each. Empty if it needs none.
        label: What the table calls it.
        precision: Of the products.
    """

    package: str
    action: str
    file: str
    label: str
    precision: str = "float32"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one case took, for every contender that was measured.

    Args:
        model: Such as "Ti/16".
        threads: That each contender might use.
        batch_size: Images that are answered at a time.
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
        names = [
            name
            for name in self.seconds
            if CONTENDERS[name].package == package
            and CONTENDERS[name].precision == "float32"
        ]
        return min(names, key=self.median, default=None)

    def ratio(self, name: str) -> float | None:
        """Return how many times as long as `name` timm's fastest takes.

        The median over the rounds; None if nothing of timm was measured.
        """
        reference = self.fastest("timm")
        if reference is None:
            return None
        return median_ratio(self.seconds[reference], self.seconds[name])


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
                # After each case: an interrupted run leaves what it has.
                write_csv(options.csv, results)
                print(describe_fastest(result), flush=True)
    print(markdown(results, describe_run(options, versions, load)))
    if not options.require_not_slower:
        return 0
    return 1 if any(is_slower(r, options.tolerance) for r in results) else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--models", type=names, default="Ti/16", help="keys of VARIANTS")
    add("--batch_sizes", type=numbers, default="1,8", help="images at a time")
    add("--threads", type=numbers, default="1,2", help="of each contender")
    add(
        "--contenders",
        type=names,
        default=",".join(CONTENDERS),
        help="who takes part; those of timm need --torch_python",
    )
    add("--rounds", type=int, default=30, help="answers that count, of each")
    add(
        "--gelu", default="tanh", help="tanh or exact, of ours; timm's is exact"
    )
    add("--torch_python", help="interpreter with torch, timm and onnx")
    add(
        "--csv",
        type=pathlib.Path,
        default="benchmarks/results/exports.csv",
        help="file to write",
    )
    add(
        "--require_not_slower",
        action="store_true",
        help="exit with 1 if our fastest float32 is slower than timm's",
    )
    add("--tolerance", type=float, default=0.0, help="of that requirement")
    options = parser.parse_args(arguments)
    check(parser, options)
    if not options.torch_python:
        options.contenders = [
            name
            for name in options.contenders
            if CONTENDERS[name].package != "timm"
        ]
    return options


def numbers(text: str) -> list[int]:
    """Return the positive numbers in a list with commas."""
    values = [int(number) for number in names(text)]
    if min(values, default=0) < 1:
        raise argparse.ArgumentTypeError(f"not positive numbers: {text!r}")
    return values


def check(parser: argparse.ArgumentParser, options: argparse.Namespace):
    """End the program if the options do not fit each other."""
    for values, known, option in (
        (options.models, VARIANTS, "models"),
        (options.contenders, CONTENDERS, "contenders"),
        ([options.gelu], GELUS, "gelu"),
    ):
        try:
            for value in values:
                pick(dict.fromkeys(known), value, f"--{option}")
        except ValueError as error:
            parser.error(str(error))
    for model in options.models:
        config = VARIANTS[model].config
        if config.stem_stages is not None or config.pooling != "token":
            parser.error(f"--models: not a ViT that timm has, too: {model}")
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more: {options.rounds}")
    if options.torch_python and not shutil.which(options.torch_python):
        parser.error(f"--torch_python: no program: {options.torch_python}")
    if options.require_not_slower and not options.torch_python:
        parser.error("--require_not_slower needs --torch_python")


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
            **describe_model(model, options),
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


def describe_model(model: str, options: argparse.Namespace) -> dict:
    """Return what a worker has to know of a model, JSON-able."""
    config = model_config(model, VARIANTS[model].config.image_size)
    return {
        "config": dataclasses.asdict(config),
        "num_parameters": num_parameters(config),
        "precision": "float32",
        "gelu": options.gelu,
    }


def python(case: dict, options: argparse.Namespace) -> str:
    """Return the interpreter that has what the action needs."""
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
        batch_size: Images that are answered at a time.
        folder: Of the files.
        options: Of the command line.
        versions: Takes the versions of what was run.
    """
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in options.contenders:
            case = {
                **describe_model(model, options),
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
    """Return what a worker has to know of a contender, JSON-able."""
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

    In a round everyone answers, one after the other, each time starting with
    the next: nobody always comes after the same one. The others have filled
    the caches, so of two answers the second counts.

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


def describe_run(
    options: argparse.Namespace, versions: dict, load: float
) -> list[str]:
    """Return lines on the machine, the versions and the run."""
    lines = [
        *describe_machine(os.cpu_count(), versions),
        f"Run: {datetime.date.today()}, {count(options.rounds, 'round')}, "
        f"GELU of ours: {options.gelu}, load before: {load:.1f}",
    ]
    if not options.torch_python:
        lines.append("timm was left out: no --torch_python was given")
    return lines


def markdown(results: list[Result], description: list[str]) -> str:
    """Return the page of the results, a table for each model."""
    lines = [
        *(f"- {line}" for line in description),
        "",
        "Milliseconds of the median answer and, in brackets, the median over",
        "the rounds of the time of timm's fastest graph at float32 over that",
        "of this one: above 1, this one is faster.",
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
        lines += ["", *markdown_table(columns, rows)]
    return "\n".join([*lines, "", *map(describe_fastest, results), ""])


def cell(result: Result, name: str) -> str:
    """Return what the table says of a contender in a case."""
    ratio = result.ratio(name)
    milliseconds = f"{1e3 * result.median(name):.2f}"
    return milliseconds if ratio is None else f"{milliseconds} ({ratio:.2f})"


def write_csv(path: pathlib.Path, results: list[Result]):
    """Write a row for every case and contender."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for result in results:
            for name, seconds in result.seconds.items():
                ratio, median = result.ratio(name), result.median(name)
                rate = result.batch_size / median
                writer.writerow(
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
                        "images_per_second": f"{rate:.6g}",
                        "ratio": "" if ratio is None else f"{ratio:.4f}",
                    }
                )


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

if __name__ == "__main__":
    sys.exit(main())
