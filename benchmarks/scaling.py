"""Measure two processes beside one: python -m benchmarks.scaling.

Each process has a core of its own. The first trains alone, too, while the
second waits; all cases take turns, round by round.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

from benchmarks.harness import make_parser, split_names, write_table
from keras_vit import VARIANTS
from keras_vit.tables import format_table, pick


def main(arguments: list[str] | None = None):
    """Run the command.

    Args:
        arguments: Those of the command line, None for the real ones.
    """
    options = parse(arguments)
    rows = [row for model in options.models for row in measure(model, options)]
    write_table(options.out, rows)
    print(describe(rows))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--models",
        type=split_names,
        default="Ti/16,S/16",
        help="to measure, keys of VARIANTS",
    )
    add("--image_size", type=int, default=224, help="side in pixels")
    add("--depth", type=int, help="blocks; default: those of the model")
    add("--batch_size", type=int, default=8, help="images of one process")
    add("--rounds", type=int, default=5, help="of all cases, one by one")
    add("--steps", type=int, default=4, help="of a case in a round, and one")
    add(
        "--gradient_dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="in which the gradients of kernels are summed",
    )
    add(
        "--out",
        type=pathlib.Path,
        default="build/benchmark/scaling.csv",
        help="file to write",
    )
    options = parser.parse_args(arguments)
    for model in options.models:
        try:
            pick(VARIANTS, model, "--models")
        except ValueError as error:
            parser.error(str(error))
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two processes need two cores")
    if options.batch_size % 2:
        parser.error(f"--batch_size must be even: {options.batch_size}")
    return options


def measure(model: str, options: argparse.Namespace) -> list[dict]:
    """Return a row for each of CASES of one model.

    Raises:
        RuntimeError: If a process fails.
    """
    load = os.getloadavg()[0]
    measured = run_workers(
        {
            "workers": ",".join(f"127.0.0.1:{port}" for port in free_ports(2)),
            "model": model,
            "image_size": options.image_size,
            "depth": options.depth,
            "batch_size": options.batch_size,
            "rounds": options.rounds,
            "steps": options.steps,
            "gradient_dtype": options.gradient_dtype,
        }
    )
    rows = []
    for case, (processes, factor) in SCALING_CASES.items():
        seconds = measured["seconds"][case]
        batch = factor * options.batch_size
        median = statistics.median(seconds)
        rows.append(
            {
                "model": model,
                "depth": options.depth or VARIANTS[model].config.depth,
                "image_size": options.image_size,
                "case": case,
                "processes": processes,
                "batch_size": batch,
                "bytes": 0 if processes == 1 else measured["bytes"],
                "rounds": len(seconds),
                "seconds": f"{median:.4f}",
                "best_seconds": f"{min(seconds):.4f}",
                "images_per_second": f"{batch / median:.3f}",
                "load": f"{load:.1f}",
            }
        )
    return rows


def run_workers(task: dict) -> dict:
    """Return the measurements of the first of two workers.

    Args:
        task: The argument of `benchmarks.worker_scaling.main`, without the
            place of the worker.

    Raises:
        RuntimeError: If one fails.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker_scaling"]
            + [json.dumps({**task, "core": core, "index": index})],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, core in enumerate(sorted(os.sched_getaffinity(0))[:2])
    ]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise RuntimeError(f"The processes ended with {codes}, not with 0.")
    return json.loads(outputs[0].splitlines()[-1])


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def describe(rows: list[dict]) -> str:
    """Return the rows of the file as a Markdown table, with predictions.

    Two processes should take the time of one on its share of the batch, and
    that of the sum of the gradients alone, as if it began when the backward
    pass is over.
    """
    columns = ("model", "case", "processes", "batch", "s/step", "best")
    columns += ("img/s", "of ideal", "predicted s/step")
    by_case = {(row["model"], row["case"]): row for row in rows}
    table = []
    for row in rows:
        alone = by_case[row["model"], "one"]
        reduce = by_case[row["model"], "all-reduce"]
        seconds, processes = float(row["seconds"]), int(row["processes"])
        size = int(row["batch_size"])
        share = size / processes / int(alone["batch_size"])
        ideal = float(alone["seconds"]) * share
        cells = [row["model"], row["case"], processes, size]
        cells += [f"{seconds:.3f}", f"{float(row['best_seconds']):.3f}"]
        if not size:  # The sum alone.
            cells[3] = f"{int(row['bytes']) / 1e6:.0f} MB"
            cells += ["", "", ""]
        else:
            predicted = ideal + float(reduce["seconds"])
            cells += [f"{size / seconds:.2f}", f"{ideal / seconds:.0%}"]
            cells += [f"{predicted:.3f}" if processes > 1 else ""]
        table.append(cells)
    return format_table(columns, table)


# The number of processes, and the batch of all of them in --batch_size.
SCALING_CASES = {
    "one": (1, 1),
    "weak": (2, 2),  # Twice the batch.
    "strong": (2, 1),  # The same batch, halved.
    "all-reduce": (2, 0),
}

if __name__ == "__main__":
    main()
