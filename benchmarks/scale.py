"""What a training needs on many devices, calculated: memory and time.

    python -m benchmarks.scale
    KERAS_BACKEND=jax python -m benchmarks.scale --compile
    python -m benchmarks.scale --measure

The first prints the bytes of a device and the time of an update, for clusters
of several sizes. The second puts what XLA says it needs for the update of the
trainers beside the calculated bytes, on virtual devices and without memory for
any weight. The third trains with two processes, and puts the measured times
beside the calculated ones.
"""

import dataclasses
import math
import os
import pathlib
import statistics
import sys
import tempfile
from typing import NamedTuple

from benchmarks.engines import free_addresses, run_together
from benchmarks.flops import count_tokens, step_flops
from benchmarks.harness import make_parser, names_of, read_csv, split_numbers
from keras_vit import VARIANTS
from keras_vit.tables import format_table

# Ways to split a model over devices: whether the weights are split over those
# that share a batch, and the number of devices that share a layer.
WAYS = {
    "data parallel": (False, 1),
    "fully sharded": (True, 1),
    "tensor parallel 2": (False, 2),
    "tensor parallel 8": (False, 8),
    "both 2": (True, 2),
}
# The weight, the first and the second moment, each float32.
BYTES_OF_STATE = 12
# An update waits for one of so many packs of gradients at least.
PACKS = 16
BACKWARD_SHARE = 2 / 3  # Of the time of a step.


class Memory(NamedTuple):
    """The bytes of a device.

    Args:
        state: Weights and moments of the optimizer, float32.
        gradients: Those of the weights that the device has.
        collected: Weights of others that it reads during an update. XLA may
            collect one layer after the other or, as on CPUs, all at once; this
            is all at once.
        activations: What the forward pass keeps for the backward pass.
    """

    state: int
    gradients: int
    collected: int
    activations: int


def count_weights(config) -> tuple[int, int]:
    """Return the number of weights, and of those that devices may share.

    Tensor parallelism splits the dense layers of blocks, but for the biases of
    the second of each pair.
    """
    import keras

    from keras_vit import VisionTransformer

    with keras.StatelessScope(initialize_variables=False):
        model = VisionTransformer(config)
    width, mlp_dim = config.width, config.mlp_dim
    block = 4 * width**2 + 3 * width + 2 * width * mlp_dim + mlp_dim
    total = sum(math.prod(v.shape) for v in model.trainable_variables)
    return total, config.depth * block


def count_memory(
    config, way: str, num_devices: int, images: int, size: int = 4
) -> Memory:
    """Return the bytes of a device.

    With T tokens of width D, hidden size M, h heads and L blocks, a device
    keeps for each image, of m devices that share a layer,

        L (4 T D + (T (4 D + 2 M) + h T^2) / m)

    numbers: the input and the output of the attention and of the MLP, their
    norms; in parts, queries, keys and values, what the attention returns, the
    hidden layer before and after the activation, and the probabilities.
    Attention as one kernel of a GPU does not keep the probabilities.

    Args:
        config: A model without a stem.
        way: A key of WAYS.
        num_devices: All devices together.
        images: Images of each group of devices that share layers.
        size: Bytes of an activation.
    """
    is_sharded, shared = WAYS[way]
    total, in_blocks = count_weights(config)
    part = total - in_blocks + in_blocks / shared
    held = part / (num_devices // shared) if is_sharded else part
    tokens, width = count_tokens(config), config.width
    whole = 4 * tokens * width
    split = tokens * (4 * width + 2 * config.mlp_dim)
    split += config.num_heads * tokens**2
    numbers = config.depth * (whole + split / shared)
    return Memory(
        state=round(BYTES_OF_STATE * held),
        gradients=round(4 * held),
        collected=round(size * (part - held)),
        activations=round(size * images * numbers),
    )


class Seconds(NamedTuple):
    """The seconds of an update.

    Args:
        compute: Products of the images of a device.
        sum: Sending gradients, and weights if they are split.
        visible: The part of `sum` that nothing else hides.
        input: Decoding and augmenting the images of a device. It happens
            during the rest; if it takes longer, the device waits.
        checkpoint: Writing the state, divided by the updates between two.
    """

    compute: float
    sum: float
    visible: float
    input: float
    checkpoint: float

    @property
    def update(self) -> float:
        """The whole update."""
        busy = max(self.compute + self.visible, self.input)
        return busy + self.checkpoint


def sum_seconds(
    count: int, is_sharded: bool, num_devices: int, bandwidth: float, size: int
) -> float:
    """Return the seconds to sum gradients of `count` numbers in a ring.

    Fully sharded, weights are collected for the forward and for the backward
    pass, and each device receives the sum of its part.

    Args:
        count: Numbers of the gradient that a device computes.
        is_sharded: Whether the weights are split.
        num_devices: Those that share a batch.
        bandwidth: Bytes a second that a device sends.
        size: Bytes of a number.
    """
    turns = 3 if is_sharded else 2
    return turns * (num_devices - 1) / num_devices * size * count / bandwidth


def visible_seconds(total: float, compute: float, is_sharded: bool) -> float:
    """Return how long an update waits for what is sent.

    Gradients are sent during the backward pass, weights during both.
    """
    hidden = compute if is_sharded else BACKWARD_SHARE * compute
    return max(total / PACKS, total - hidden)


def count_seconds(config, way: str, num_devices: int, options) -> Seconds:
    """Return the parts of an update of a cluster.

    Args:
        config: A model with pooling of tokens, or nearly.
        way: "data parallel" or "fully sharded".
        num_devices: Devices of the cluster.
        options: Those of the command.
    """
    total, _ = count_weights(config)
    flops = step_flops(config, "train", options.images)
    compute = flops / (options.tflops * 1e12)
    is_sharded, _ = WAYS[way]
    link = num_devices, options.bandwidth * 1e9, options.size
    sent = sum_seconds(total, is_sharded, *link)
    written = BYTES_OF_STATE * total / (num_devices if is_sharded else 1)
    return Seconds(
        compute,
        sent,
        visible_seconds(sent, compute, is_sharded),
        options.images / (options.cores * options.images_per_core),
        written / (options.write * 1e9) / options.updates,
    )


def find_ways(names: list[str], num_devices: int) -> list[str]:
    """Return the ways for which there are enough devices."""
    return [name for name in names if WAYS[name][1] <= num_devices]


def print_tables(options):
    """Print the bytes and the seconds of each cluster."""
    gigabytes, milliseconds = [], []
    for name in options.models:
        config = VARIANTS[name].config
        for count in options.devices:
            for way in find_ways(options.ways, count):
                images = options.images * WAYS[way][1]
                memory = count_memory(config, way, count, images, options.size)
                parts = (*memory, sum(memory))
                texts = [f"{size / 1e9:.1f}" for size in parts]
                gigabytes.append([name, count, way, *texts])
            for way in ("data parallel", "fully sharded"):
                seconds = count_seconds(config, way, count, options)
                alone = seconds.compute
                texts = [f"{1000 * x:.0f}" for x in (*seconds, seconds.update)]
                texts[4] = f"{1000 * seconds.checkpoint:.1f}"
                rate = count * options.images / seconds.update
                milliseconds.append(
                    [name, count, way, *texts]
                    + [f"{rate:,.0f}", f"{alone / seconds.update:.0%}"]
                )
    print(f"{options.images} images a device. Memory of a device, GB:")
    parts = [*Memory._fields, "sum"]
    print(format_table(["model", "devices", "way", *parts], gigabytes))
    print("\nTime of an update, ms:")
    parts = [*Seconds._fields, "update", "images/s", "of one device's rate"]
    print(format_table(["model", "devices", "way", *parts], milliseconds))


def compile_update(config, way: str, num_devices: int, images: int) -> int:
    """Return the bytes that XLA needs on each device for an update.

    Nothing has a value: the weights are shapes. Without dropout.
    """
    import jax
    import keras
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from keras_vit import VisionTransformer
    from trainers.engine.jax import JaxEngine
    from trainers.engine.update import Update
    from trainers.optim.losses import softmax
    from trainers.optim.optimizers import DECAYING, Optimizer, Parameter
    from trainers.optim.rules import OPTIMIZERS

    is_sharded, shared = WAYS[way]
    config = dataclasses.replace(
        config, dropout_rate=0.0, stochastic_depth_rate=0.0
    )
    engine = JaxEngine(shared, is_sharded, is_alone=num_devices == 1)
    with engine.scope(), keras.StatelessScope(initialize_variables=False):
        model = VisionTransformer(config)
    rule = OPTIMIZERS["adamw"]
    parameters = [
        Parameter(v, {}, rule, 1.0, 0.1 * (v.name in DECAYING), 0.0)
        for v in model.trainable_variables
    ]
    optimizer = Optimizer(parameters, 1e-4, 0.0, False)
    compiled = engine.compile(Update(model, optimizer, softmax))

    def shape_of(shape, sharding, dtype="float32"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    everywhere = NamedSharding(engine.mesh, PartitionSpec())
    layouts = engine._layouts
    weights = [
        shape_of(
            v.shape,
            layouts.get_variable_layout(v).backend_layout
            if layouts
            else everywhere,
        )
        for v in model.trainable_variables
    ]
    slots = [dict.fromkeys(rule.slots(w.shape), w) for w in weights]
    iterations = shape_of((), everywhere, "int32")
    size = images * engine.num_replicas
    shapes = (size, *config.image_size, config.channels)
    batch = [
        shape_of(shape, NamedSharding(engine.mesh, PartitionSpec("batch")))
        for shape in (shapes, (size, config.num_classes), (size,))
    ]
    state = weights, [], slots, iterations, []
    program = compiled._program(state, None).lower(
        state, batch, np.uint32(0), []
    )
    needed = program.compile().memory_analysis()
    return needed.argument_size_in_bytes + needed.temp_size_in_bytes


def compare_memory(options):
    """Print XLA's bytes beside the calculated ones, in float32."""
    import jax

    count, rows = jax.device_count(), []
    for name in options.models:
        config = VARIANTS[name].config
        for way in find_ways(options.ways, count):
            images = options.images * WAYS[way][1]
            found = compile_update(config, way, count, images)
            memory = count_memory(config, way, count, images)
            texts = [f"{size / 1e9:.2f}" for size in (sum(memory), found)]
            row = [name, count, way, images, *texts]
            rows.append([*row, f"{found / sum(memory):.2f}"])
            print(*rows[-1], sep=" | ", flush=True)  # Long before the end.
    heads = ["model", "devices", "way", "images", "calculated, GB"]
    print(format_table([*heads, "XLA, GB", "XLA / calculated"], rows))


# Two processes on this machine: the backend and the flag of each training.
SETUPS = {
    "TensorFlow": ("tensorflow", "--strategy=multi_worker"),
    "JAX": ("jax", "--strategy=data_parallel"),
    "JAX sharded": ("jax", "--strategy=fsdp"),
}
NUM_PROCESSES = 2
# Models and images of a device. The first gives the rate of the sums, with
# which the time of the others is calculated.
CASES = [("Ti/16", 2), ("Ti/16", 8), ("S/16", 2)]
UPDATES = 12


def train(
    setup: str, model: str, images: int, folder: pathlib.Path, is_alone: bool
) -> float:
    """Return the seconds of an update, each process on a processor of its own.

    Args:
        setup: A key of SETUPS.
        model: A key of VARIANTS.
        images: Those of a device.
        folder: A new folder.
        is_alone: Whether the processes train without each other, each its own
            model, so that the time has no sums.

    Raises:
        RuntimeError: If a training fails.
    """
    backend, flag = SETUPS[setup]
    batch_size = images if is_alone else images * NUM_PROCESSES
    command = [sys.executable, "-m", "trainers.train", "--recipe=digits_exact"]
    command += [f"--model={model}", "--patch_size=16", "--image_size=224"]
    command += [f"--batch_size={batch_size}", f"--total_steps={UPDATES}"]
    command += ["--steps_per_loop=1", "--eval_split=test[:8]"]
    command += [] if is_alone else [flag]
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    addresses = ",".join(free_addresses(NUM_PROCESSES))
    commands = []
    for index in range(NUM_PROCESSES):
        words = [f"--workers={addresses}", f"--worker_index={index}"]
        words = [] if is_alone else words
        place = folder / str(index) if is_alone else folder
        commands.append(
            ["taskset", "--cpu-list", str(index)]
            + [*command, *words, f"--run_dir={place}"]
        )
    run_together(commands, environment, setup)
    rates = [
        float(read_csv(path)[-1]["images_per_second"])
        for path in folder.rglob("metrics.csv")
    ]
    return batch_size / statistics.mean(rates)


def compare_seconds(options):
    """Print measured times of an update beside the calculated ones."""
    rows = []
    for setup in options.setups:
        _, flag = SETUPS[setup]
        is_sharded, bandwidth = flag == "--strategy=fsdp", None
        for model, images in CASES:
            weights, _ = count_weights(
                dataclasses.replace(
                    VARIANTS[model].config, num_classes=10, channels=1
                )
            )
            found = {True: [], False: []}
            for _ in range(options.rounds):
                for is_alone, seconds in found.items():
                    with tempfile.TemporaryDirectory() as folder:
                        place = pathlib.Path(folder)
                        seconds.append(
                            train(setup, model, images, place, is_alone)
                        )
            compute, measured = (statistics.median(x) for x in found.values())
            sent = sum_seconds(weights, is_sharded, NUM_PROCESSES, 1, 4)
            if bandwidth is None:
                # Sums and products share the processors: nothing is hidden.
                bandwidth = sent / max(measured - compute, 1e-9)
                known = ["", "", f"{bandwidth / 1e6:.0f} MB/s"]
            else:
                calculated = compute + sent / bandwidth
                known = [f"{1000 * calculated:.0f}"]
                known += [f"{measured / calculated:.2f}", ""]
            times = [f"{1000 * x:.0f}" for x in (compute, measured)]
            rows.append([setup, model, images, *times, *known])
            print(*rows[-1], sep=" | ", flush=True)
    heads = ["setup", "model", "images", "alone, ms", "measured, ms"]
    heads += ["calculated, ms", "measured / calculated", "rate of sums"]
    print(format_table(heads, rows))


OPTIONS = [
    ("--models", names_of(VARIANTS), ["L/16", "H/14", "G/14"], "of VARIANTS"),
    ("--ways", names_of(WAYS), [*WAYS], "to split a model over devices"),
    ("--devices", split_numbers, [8, 64, 512], "sizes of the cluster"),
    ("--images", int, 64, "images of a device in an update"),
    ("--size", int, 2, "bytes of activations, and of what is sent"),
    ("--tflops", float, 302.0, "that the model reaches on a device"),
    ("--bandwidth", float, 50.0, "GB a second that a device sends"),
    ("--cores", int, 16, "that decode images for a device"),
    ("--images_per_core", float, 151.0, "decoded and augmented a second"),
    ("--write", float, 1.0, "GB of a checkpoint a second, each process"),
    ("--updates", int, 1000, "between two checkpoints"),
    ("--compile", bool, False, "beside XLA's figures, on JAX"),
    ("--measure", bool, False, "beside measured times, on this machine"),
    ("--setups", names_of(SETUPS), [*SETUPS], "with --measure"),
    ("--rounds", int, 3, "with --measure"),
]


def main(arguments: list[str] | None = None):
    """Run the command."""
    options = make_parser(__doc__, OPTIONS).parse_args(arguments)
    if options.compile:
        compare_memory(options)
    elif options.measure:
        compare_seconds(options)
    else:
        print_tables(options)


if __name__ == "__main__":
    main()
