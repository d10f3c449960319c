"""Measure two processes beside one, and model what many would do.

Example:
    python -m benchmarks.scaling               # measures, on two cores
    python -m benchmarks.scaling --model_only  # the model, without measuring
"""

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

from benchmarks.flops import step_flops
from keras_vit import VARIANTS
from keras_vit.tables import pick

BYTES_PER_GRADIENT = 4  # float32, whatever the precision of the products.
MODELS = ("Ti/16", "S/16", "B/16", "L/16", "H/14")
REPLICAS = (8, 64, 512)
BATCH_SIZE = 4096  # Of the paper, for pre-training.
CSV_COLUMNS = (
    "model",
    "depth",
    "image_size",
    "case",
    "processes",
    "batch_size",
    "bytes",
    "rounds",
    "seconds",
    "best_seconds",
    "images_per_second",
    "load",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Replicas and what connects them. Every figure is an assumption.

    Args:
        flops: FLOP/s that a replica reaches in training.
        replicas_per_node: Replicas that `bandwidth` connects.
        bandwidth: Bytes per second from a replica to the next of its node.
        latency: Seconds from a replica to the next of its node.
        network_bandwidth: Bytes per second from a node to the next, in all.
        network_latency: Seconds from a node to the next.
    """

    flops: float
    replicas_per_node: int
    bandwidth: float
    latency: float
    network_bandwidth: float = float("inf")
    network_latency: float = 0.0


def all_reduce_seconds(
    num_bytes: int, num_replicas: int, machine: Machine
) -> float:
    """Return the time to sum `num_bytes` over all replicas, in a ring.

    Each of N replicas sends 2 (N - 1) / N of the bytes to the next, and the
    slowest link sets the pace. The latency is that of twice the way around,
    over N - nodes links inside of nodes and nodes - 1 between them.

    Args:
        num_bytes: Of the gradient, the same on each replica.
        num_replicas: How many sum them.
        machine: What connects them.

    Example:
        >>> links = Machine(1.0, 8, bandwidth=100.0, latency=0.0)
        >>> all_reduce_seconds(400, 8, links)
        7.0
    """
    nodes = -(-num_replicas // machine.replicas_per_node)
    bandwidth = machine.bandwidth
    if nodes > 1:
        bandwidth = min(bandwidth, machine.network_bandwidth)
    sent = 2 * (num_replicas - 1) / num_replicas * num_bytes
    latency = 2 * (
        (num_replicas - nodes) * machine.latency
        + (nodes - 1) * machine.network_latency
    )
    return sent / bandwidth + latency


def step_seconds(
    compute: float, all_reduce: float, overlap: float = 0.0
) -> float:
    """Return the time of a step: compute + (1 - overlap) all_reduce.

    Args:
        compute: Seconds of forward and backward pass of a replica.
        all_reduce: Seconds of the sum of the gradients.
        overlap: Share of the sum that goes on during the backward pass. Here
            none: the gradients are summed as one array when all are there.
    """
    return compute + (1 - overlap) * all_reduce


def gradient_bytes(model: str) -> int:
    """Return the bytes that a replica gives into the sum at each update."""
    return BYTES_PER_GRADIENT * VARIANTS[model].num_parameters


def model_table(batch_size: int = BATCH_SIZE, overlap: float = 0.0) -> str:
    """Return what the model says of MODELS on MACHINES, in Markdown.

    Args:
        batch_size: Images of an update, over all replicas.
        overlap: See `step_seconds`.
    """
    heads = [f"{n} replicas" for n in REPLICAS]
    lines = [
        "| model | MB | machine | " + " | ".join(heads) + " |",
        "|---|---|---|" + "---|" * len(heads),
    ]
    for model in MODELS:
        size = gradient_bytes(model)
        for name, machine in MACHINES.items():
            cells = []
            for replicas in REPLICAS:
                flops = step_flops(VARIANTS[model].config, "train", batch_size)
                compute = flops / replicas / machine.flops
                reduce = all_reduce_seconds(size, replicas, machine)
                share = compute / step_seconds(compute, reduce, overlap)
                cells.append(
                    f"{1e3 * compute:.1f} + {1e3 * reduce:.1f} ms, {share:.0%}"
                )
            row = [model, f"{size / 1e6:,.0f}", name, *cells]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def measure(model: str, options: argparse.Namespace) -> list[dict]:
    """Return the rows of CSV_COLUMNS of one model.

    Two processes, each on a core of its own; the first also trains alone
    while the second waits. All cases in turns, round by round.
    """
    workers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    load = os.getloadavg()[0]
    processes = []
    for index, core in enumerate(sorted(os.sched_getaffinity(0))[:2]):
        task = {
            "core": core,
            "workers": workers,
            "index": index,
            "model": model,
            "image_size": options.image_size,
            "depth": options.depth,
            "batch_size": options.batch_size,
            "rounds": options.rounds,
            "steps": options.steps,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker_scaling"]
                + [json.dumps(task)],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise RuntimeError(f"The processes ended with {codes}, not with 0.")
    measured = json.loads(outputs[0].splitlines()[-1])
    seconds = measured["seconds"]
    rows = []
    for case, (processes, factor) in CASES.items():
        batch = factor * options.batch_size
        median = statistics.median(seconds[case])
        rows.append(
            {
                "model": model,
                "depth": options.depth or VARIANTS[model].config.depth,
                "image_size": options.image_size,
                "case": case,
                "processes": processes,
                "batch_size": batch,
                "bytes": 0 if processes == 1 else measured["bytes"],
                "rounds": len(seconds[case]),
                "seconds": f"{median:.4f}",
                "best_seconds": f"{min(seconds[case]):.4f}",
                "images_per_second": f"{batch / median:.3f}",
                "load": f"{load:.1f}",
            }
        )
    return rows


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measured_table(rows: list[dict]) -> str:
    """Return the rows of the file in Markdown, and what the model says.

    The model of two processes is the time of one on its share of the batch,
    and that of the sum alone.
    """
    lines = [
        "| model | case | processes | batch | s/step | best | img/s "
        "| of ideal | model s/step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_case = {(row["model"], row["case"]): row for row in rows}
    for row in rows:
        alone = by_case[row["model"], "one"]
        reduce = by_case[row["model"], "all-reduce"]
        one, two = float(alone["seconds"]), float(row["seconds"])
        processes = int(row["processes"])
        size = int(row["batch_size"])
        share = size / processes / int(alone["batch_size"])
        cells = [row["model"], row["case"], str(processes), str(size)]
        cells += [f"{two:.3f}", f"{float(row['best_seconds']):.3f}"]
        if not size:  # The sum alone.
            cells[3] = f"{int(row['bytes']) / 1e6:.0f} MB"
            cells += ["", "", ""]
        else:
            predicted = one * share
            if processes > 1:
                predicted = step_seconds(predicted, float(reduce["seconds"]))
            cells += [f"{size / two:.2f}", f"{one * share / two:.0%}"]
            cells += [f"{predicted:.3f}" if processes > 1 else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None):
    """Run the command.

    Args:
        arguments: Those of the command line, None for the real ones.
    """
    options = parse(arguments)
    if options.model_only:
        print(model_table(options.global_batch_size, options.overlap))
        return
    rows = [row for model in options.models for row in measure(model, options)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    print(measured_table(rows))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model_only", action="store_true", help="print the model's table")
    add(
        "--global_batch_size", type=int, default=BATCH_SIZE, help="of the model"
    )
    add("--overlap", type=float, default=0.0, help="of the model, 0 to 1")
    add("--models", default="Ti/16,S/16", help="to measure, keys of VARIANTS")
    add("--image_size", type=int, default=224, help="side in pixels")
    add("--depth", type=int, help="blocks; default: those of the model")
    add("--batch_size", type=int, default=8, help="images of one process")
    add("--rounds", type=int, default=5, help="of all cases, one by one")
    add("--steps", type=int, default=4, help="of a case in a round, and one")
    add(
        "--out",
        type=pathlib.Path,
        default="build/benchmark/scaling.csv",
        help="file to write",
    )
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    for model in options.models:
        try:
            pick(VARIANTS, model, "--models")
        except ValueError as error:
            parser.error(str(error))
    if not options.model_only and len(os.sched_getaffinity(0)) < 2:
        parser.error("two processes need two cores")
    if options.batch_size % 2:
        parser.error(f"--batch_size must be even: {options.batch_size}")
    return options


# What is measured: processes, and batches of all of them in --batch_size.
CASES = {
    "one": (1, 1),
    "weak": (2, 2),  # Twice the batch.
    "strong": (2, 1),  # The same batch, halved.
    "all-reduce": (2, 0),
}
# Data sheets, of which 40 % are reached in products and 80 % on links. A GPU:
# A100, 312 TFLOP/s in bfloat16, NVLink 300 GB/s each way. TPU v4: 275 TFLOP/s
# and, of its six links of 50 GB/s, the two along one axis of the torus.
MACHINES = {
    "8 GPUs a node, 100 Gbit/s": Machine(
        flops=0.4 * 312e12,
        replicas_per_node=8,
        bandwidth=0.8 * 300e9,
        latency=5e-6,
        network_bandwidth=0.8 * 12.5e9,
        network_latency=20e-6,
    ),
    "8 GPUs a node, 400 Gbit/s": Machine(
        flops=0.4 * 312e12,
        replicas_per_node=8,
        bandwidth=0.8 * 300e9,
        latency=5e-6,
        network_bandwidth=0.8 * 50e9,
        network_latency=5e-6,
    ),
    "TPU v4": Machine(
        flops=0.4 * 275e12,
        replicas_per_node=4096,
        bandwidth=0.8 * 100e9,
        latency=1e-6,
    ),
}

if __name__ == "__main__":
    main()
