"""The memory and the time that a run needs, and the available memory."""

import contextlib
import pathlib
import time

import keras
import psutil
import tensorflow as tf
from tensorflow.python.client import device_lib

from trainers.loop.loop import Loop
from trainers.loop.memory import Memory, estimate_memory, variable_bytes
from trainers.runs.job import Job
from trainers.runs.summaries import scale

NUM_MEASURED = 3  # Updates.
CGROUP = pathlib.Path("/sys/fs/cgroup")
# A step keeps at most so many bytes of activations per FLOP of a forward pass,
# from Ti/16 on: 0.019 for a Ti/16, 0.010 for an S/16, 0.005 for a B/32.
LARGEST_BYTES_PER_FLOP = 0.02


def estimate_job_memory(job: Job) -> Memory:
    """Return the estimated memory that a replica needs for training."""
    recipe, strategy = job.recipe, job.loop.strategy
    return estimate_memory(
        job.loop.model,
        recipe.batch_size // strategy.num_replicas_in_sync,
        job.loop.optimizer,
        accumulation_steps=recipe.accumulation_steps,
        runs=job.loop.variants,
        frozen=teachers_of(job.loop),
    )


def teachers_of(loop: Loop) -> list[keras.Model]:
    """Return the teacher whose predictions a loop learns, if there is one."""
    teacher = loop.distillation and loop.distillation.teacher
    return [teacher] if teacher else []


def held_bytes(loop: Loop) -> int:
    """Return the bytes of weights and slots that are in memory already."""
    models = loop.model, *teachers_of(loop)
    weights = [v for model in models for v in model.weights]
    return sum(map(variable_bytes, weights)) + sum(loop.optimizer.count_bytes())


def available_bytes(strategy: tf.distribute.Strategy, held: int = 0) -> int:
    """Return the memory that one replica of this process may use.

    For a CPU, the free memory of the machine, or of the container if that is
    less, shared by the replicas of the process.

    Args:
        strategy: The strategy of the run.
        held: What a replica holds already. It is part of what it needs, and
            the free memory of a CPU does not contain it any more.
    """
    devices = [name for name in strategy.extended.worker_devices]
    kind = tf.DeviceSpec.from_string(devices[0]).device_type
    if kind != "CPU":
        limits = [
            device.memory_limit
            for device in device_lib.list_local_devices()
            if device.device_type == kind
        ]
        if limits:
            return min(limits)
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # No such limit.
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, limit - used)
    return free // len(devices) + held


def describe_memory(memory: Memory, available: int) -> str:
    """Return the required and the available memory, as lines of text."""
    rows = memory._asdict() | {"total": memory.total, "available": available}
    return "\n".join(
        ["Memory of a device, estimated:"]
        + [f"  {name:12s} {scale(size)}B" for name, size in rows.items()]
    )


def describe_shortage(memory: Memory, available: int, job: Job) -> str:
    """Return how to make a training fit into memory; empty if it does.

    Args:
        memory: The estimated need of a replica.
        available: The bytes that it may use.
        job: The training.
    """
    if memory.total <= available:
        return ""
    recipe, fixed = job.recipe, memory.total - memory.activations
    ways = []
    # Accumulating keeps the sum of the gradients as well.
    extra = memory.gradients if recipe.accumulation_steps == 1 else 0
    size = recipe.batch_size // job.loop.strategy.num_replicas_in_sync
    parts = recipe.accumulation_steps
    factors = [n for n in range(2, size // parts + 1) if size // parts % n == 0]
    for factor in factors:
        if fixed + extra + memory.activations / factor <= available:
            ways.append(f"--accumulation_steps={parts * factor}")
            break
    for share in (2, 4, 8, 16, 32, 64):
        if share > max(size // parts, 1):
            break  # A part has one image at least.
        if fixed + memory.activations / share <= available:
            ways.append(f"--batch_size={max(recipe.batch_size // share, 1)}")
            break
    if not recipe.use_remat:
        ways.append("--use_remat")
    if recipe.train_only is None and not recipe.lora_rank:
        ways.append("--train_only=head (with --init_from)")
    return (
        f"This does not fit: {scale(memory.total)}B are needed, "
        f"{scale(available)}B are free. To need less memory: "
        f"{', '.join(ways) or 'a smaller model'}."
    )


def warn_of_shortage(job: Job):
    """Print how to make a training fit into memory, if it may not.

    The exact estimate takes some seconds, so a coarse one comes first.
    """
    loop = job.loop
    available = available_bytes(loop.strategy, held_bytes(loop))
    images = job.recipe.batch_size / job.loop.strategy.num_replicas_in_sync
    images /= job.recipe.accumulation_steps
    coarse = images * job.flops_per_image * LARGEST_BYTES_PER_FLOP
    coarse += 16 * job.loop.model.count_params()  # As with AdamW.
    if coarse < available / 2:
        return
    shortage = describe_shortage(estimate_job_memory(job), available, job)
    if shortage:
        print(f"Warning: {shortage}", flush=True)


def measure_seconds_per_step(job: Job) -> float:
    """Return the duration of an update, the mean of NUM_MEASURED.

    Changes the weights, so the job must not be trained afterwards.
    """
    strategy, loop = job.loop.strategy, job.loop
    batches = strategy.distribute_datasets_from_function(job.train_batches)
    iterator = iter(batches)

    def update(count):
        start = time.perf_counter()
        _, sums, _ = loop.inner.train(
            iterator, tf.constant(count), tf.constant(loop.step, tf.int64)
        )
        sums.numpy()  # Waits for the devices.
        return time.perf_counter() - start

    with job.bad_examples.named_errors():
        update(1)  # Traces the graph.
        return update(NUM_MEASURED) / NUM_MEASURED
