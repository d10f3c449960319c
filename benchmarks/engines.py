"""Compare the engines of the trainers: weights, speed and memory.

    python -m benchmarks.engines --require
    KERAS_BACKEND=jax python -m benchmarks.engines --speed_of=S/16 --require

The first one trains with the command `trainers.train`, from the same initial
weights, on TensorFlow and on JAX, with any devices, processes and parts of a
batch, and prints by how much the weights differ. It starts 36 trainings. The
second one makes updates with the JAX engine and with a bare step of the same
model and optimizer, in turns. Above 1, the engine is faster.
"""

import dataclasses
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np

from benchmarks.harness import make_parser, names_of, quartiles
from keras_vit import VARIANTS, VisionTransformer
from keras_vit.tables import format_table
from trainers.recipes.recipes import RECIPES

MAX_DIFFERENCE, LEAST_SPEED = 1e-5, 0.97
RECIPE = "digits_exact"
# 20 updates of AdamW, as in the recipe, or 200 of descent with momentum.
SGD = ("--optimizer=sgd", "--learning_rate=0.1", "--total_steps=200")
SGD += ("--clip_norm=1.0",)
# The flags of each training, and the rates of dropout and stochastic depth.
TRAININGS = {
    "adamw": ((), 0.0),
    "sgd": (SGD, 0.0),
    "adamw_dropout": ((), 0.2),
    "sgd_dropout": (SGD, 0.2),
}
# Flags and numbers of devices and processes. All but one are on JAX.
SETUPS = {
    "TensorFlow": ((), 1, 1),
    "one device": ((), 1, 1),
    "one device, 2 parts": (("--accumulation_steps=2",), 1, 1),
    "one device, 4 parts": (("--accumulation_steps=4",), 1, 1),
    "8 devices, data_parallel": (("--strategy=data_parallel",), 8, 1),
    "8 devices, fsdp": (("--strategy=fsdp",), 8, 1),
    "8 devices, tensor_parallel": (("--strategy=tensor_parallel",), 8, 1),
    "8 devices, both": (("--strategy=fsdp", "--model_devices=2"), 8, 1),
    "8 devices, fsdp, 4 parts": (
        ("--strategy=fsdp", "--accumulation_steps=4"),
        8,
        1,
    ),
    "2 processes of 4, fsdp": (("--strategy=fsdp",), 4, 2),
}
# With which one each is compared. Masks of dropout are those of the backend
# and of the number of parts.
ONE, FOUR = "one device", "one device, 4 parts"
COMPARED = {setup: ONE for setup in SETUPS if setup != ONE}
COMPARED_WITH_DROPOUT = {
    setup: FOUR if "4 parts" in setup else ONE
    for setup, (_, *counts) in SETUPS.items()
    if counts != [1, 1]
}


def make_initial(path: pathlib.Path, rate: float):
    """Save a new model of the recipe, from which all begin."""
    config = dataclasses.replace(
        VARIANTS[RECIPES[RECIPE].model].config,
        image_size=8,
        patch_size=RECIPES[RECIPE].patch_size,
        channels=1,
        num_classes=10,
        dropout_rate=rate,
        stochastic_depth_rate=rate,
    )
    keras.utils.set_random_seed(0)
    VisionTransformer(config).save(path)


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    return addresses


def run_together(commands: list[list[str]], environment: dict, name: str):
    """Run commands at the same time, and wait for all of them.

    Raises:
        RuntimeError: If one fails; it has `name` and the end of its output.
    """
    processes = [
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs):
        if process.returncode:
            raise RuntimeError(f"{name} failed:\n{output[-3000:]}")


def train(setup: str, words: list[str], folder: pathlib.Path) -> list:
    """Return the weights that a training ends with.

    Raises:
        RuntimeError: If it fails.
    """
    more, num_devices, num_processes = SETUPS[setup]
    command = [sys.executable, "-m", "trainers.train", f"--recipe={RECIPE}"]
    command += [*words, *more, f"--run_dir={folder}", "--peak_tflops=1"]
    flags = os.environ.get("XLA_FLAGS", "")
    count = f"--xla_force_host_platform_device_count={num_devices}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow" if setup == "TensorFlow" else "jax",
        "XLA_FLAGS": f"{flags} {count}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    addresses = ",".join(free_addresses(num_processes))
    commands = [
        [*command, f"--workers={addresses}", f"--worker_index={index}"]
        if num_processes > 1
        else command
        for index in range(num_processes)
    ]
    run_together(commands, environment, setup)
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    return model.get_weights()


def compare_weights(names: list[str]) -> bool:
    """Print the differences of trainings; return whether one is large."""
    rows, is_beyond = [], False
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            flags, rate = TRAININGS[name]
            place = pathlib.Path(tempfile.mkdtemp(dir=folder))
            make_initial(place / "initial.keras", rate)
            words = [f"--init_from={place / 'initial.keras'}", *flags]
            found = {}
            pairs = COMPARED_WITH_DROPOUT if rate else COMPARED
            for setup, other in pairs.items():
                for each in (setup, other):
                    if each not in found:
                        found[each] = train(each, words, place / each)
                largest = max(
                    np.abs(a - b).max()
                    for a, b in zip(found[setup], found[other], strict=True)
                    if a.dtype == "float32"  # No seeds.
                )
                is_beyond |= largest > MAX_DIFFERENCE
                verdict = "no" if largest > MAX_DIFFERENCE else "yes"
                rows.append([name, setup, other, f"{largest:.1e}", verdict])
                print(*rows[-1], sep=" | ", flush=True)  # Long before the end.
    columns = ("training", "setup", "beside", "largest difference")
    print(format_table([*columns, f"within {MAX_DIFFERENCE}"], rows))
    return is_beyond


def make_steps(name: str, batch_size: int) -> tuple[dict, dict]:
    """Return functions that make updates, and the bytes that each needs.

    One for the engine on the first device, and one for a bare step that is
    compiled by JAX, with the model, the optimizer and the batch of its own.
    The bytes are those of the state and the batch, and of what is temporary.
    """
    import jax
    import tensorflow as tf

    from trainers.engine.strategies import make_engine
    from trainers.engine.update import Update
    from trainers.optim.losses import softmax
    from trainers.optim.optimizers import make_optimizer

    def make():
        model = VisionTransformer(VARIANTS[name].config)
        trained = model.trainable_variables
        return model, make_optimizer("adamw", trained, 1e-4, 0.1)

    model, optimizer = make()
    config = model.config
    draws = np.random.default_rng(0)
    shape = (batch_size, *config.image_size, config.channels)
    images = draws.normal(size=shape).astype("float32")
    labels = draws.integers(config.num_classes, size=batch_size)
    labels = np.eye(config.num_classes, dtype="float32")[labels]
    batch = images, labels, np.ones(batch_size, "float32")

    engine = make_engine("one_device")
    compiled = engine.compile(Update(model, optimizer, softmax))
    batches = engine.batches(
        lambda share: tf.data.Dataset.from_tensors(batch).repeat()
    )
    iterator, number = iter(batches), 0

    other, bare_optimizer = make()
    others = [v.value for v in other.non_trainable_variables]

    def step(state, images, labels):
        def compute(weights):
            logits, _ = other.stateless_call(
                weights, others, images, training=True
            )
            return softmax(labels, logits).mean()

        weights, slots, iterations = state
        loss, gradients = jax.value_and_grad(compute)(weights)
        state = bare_optimizer.next(weights, slots, iterations, gradients)
        return state, loss

    bare = jax.jit(step, donate_argnums=0)
    state = bare_optimizer.values
    images, labels, weights = map(jax.numpy.asarray, batch)

    def make_updates(count):
        nonlocal state
        for _ in range(count):
            state, loss = bare(state, images, labels)
        float(loss)  # Waits for it.

    def count_bytes(program, *arguments):
        found = program.lower(*arguments).compile().memory_analysis()
        return found.argument_size_in_bytes, found.temp_size_in_bytes

    given = compiled._read()
    whole = (images, labels, weights), np.uint32(0), []
    sizes = {
        "engine": count_bytes(compiled._program(given, None), given, *whole),
        "bare": count_bytes(bare, state, images, labels),
    }

    def train(count):
        nonlocal number
        compiled.train(iterator, count, number)
        number += count

    return {"engine": train, "bare": make_updates}, sizes


def compare_speed(name, batch_size: int, rounds: int, count: int) -> bool:
    """Print speed and memory of the JAX engine; return whether it is slow.

    Where other programs run, the time of the processor is steadier.
    """
    steps, sizes = make_steps(name, batch_size)
    clocks = {"time": time.perf_counter, "processor time": time.process_time}
    seconds = {key: {clock: [] for clock in clocks} for key in steps}
    for number in range(rounds + 1):
        for key in [*steps][:: 1 if number % 2 else -1]:
            starts = {clock: read() for clock, read in clocks.items()}
            steps[key](count)
            for clock, start in starts.items():
                seconds[key][clock].append((clocks[clock]() - start) / count)
    rows = [
        [
            key,
            # The first ones compile.
            *(
                f"{1000 * statistics.median(x[1:]):.1f}"
                for x in of_one.values()
            ),
            *(f"{size / 2**20:.1f}" for size in sizes[key]),
        ]
        for key, of_one in seconds.items()
    ]
    columns = [f"{clock}, ms" for clock in clocks]
    columns = ["step", *columns, "state and batch, MiB", "temporary, MiB"]
    print(f"{name}, batch {batch_size}, float32, {rounds} rounds of {count}")
    print(format_table(columns, rows))
    middles = []
    for clock in clocks:
        rounds = zip(seconds["bare"][clock][1:], seconds["engine"][clock][1:])
        low, middle, high = quartiles(a / b for a, b in rounds)
        middles.append(middle)
        print(f"bare / engine, {clock}: {middle:.3f} ({low:.3f} to {high:.3f})")
    return middles[0] < LEAST_SPEED


def main() -> int:
    """Print the tables; with `--require`, fail beyond the bars."""
    rows = [
        ("--trainings", names_of(TRAININGS), ",".join(TRAININGS), "to compare"),
        ("--speed_of", VARIANTS, None, "measure speed, on JAX, not weights"),
        ("--batch_size", int, 16, "with --speed_of"),
        ("--rounds", int, 20, "with --speed_of"),
        ("--steps", int, 5, "with --speed_of, updates in a call"),
        ("--require", bool, False, f"{MAX_DIFFERENCE} and {LEAST_SPEED}"),
    ]
    options = make_parser(__doc__, rows).parse_args()
    if options.speed_of:
        sizes = options.batch_size, options.rounds, options.steps
        is_beyond = compare_speed(options.speed_of, *sizes)
    else:
        is_beyond = compare_weights(options.trainings)
    return int(options.require and is_beyond)


if __name__ == "__main__":
    sys.exit(main())
