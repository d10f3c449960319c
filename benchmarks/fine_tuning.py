"""Measure four ways of fine-tuning: python -m benchmarks.fine_tuning.

A model learns the digits 0 to 4 in one photograph, and is fine-tuned on few
images of 5 to 9 in another one: as a whole, in its last blocks, with LoRA, and
in its head alone. All ways make the same number of updates of the same images
in the same order, each with its best learning rate of one grid. The rate is
selected on other images, which are not reported.
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator

import keras

from benchmarks.fine_tuning_images import IMAGE_SIDE, ImageSplit, write_images
from benchmarks.harness import (
    add_csv_option,
    make_parser,
    most_accurate_rate,
    write_table,
)
from benchmarks.study import CHOICE_SEED
from benchmarks.study_training import train_job
from keras_vit import VARIANTS, VisionTransformer
from keras_vit.tables import format_table
from trainers.loop.memory import estimate_memory
from trainers.models.fine_tuning import choose_trained
from trainers.optim.optimizers import make_optimizer
from trainers.recipes.schema import Recipe
from trainers.train import prepare

WAYS = {
    "all": {"train_only": "all"},
    "last 2 blocks": {"train_only": "last_blocks:2"},
    "LoRA, rank 8": {"lora_rank": 8},
    "head": {"train_only": "head"},
}
# Folder -> classes, photograph, images and seed. The learning rate is selected
# on digits that the test of the report does not have.
IMAGES = {
    "first": (
        range(5),
        "china.jpg",
        {"train": ImageSplit(0, 0.8, 16), "test": ImageSplit(0.8, 1, 2)},
        0,
    ),
    "choice": (
        range(5, 10),
        "flower.jpg",
        {"train": ImageSplit(0, 0.6, 1), "test": ImageSplit(0.6, 0.8, 4)},
        1,
    ),
    "report": (
        range(5, 10),
        "flower.jpg",
        {"train": ImageSplit(0, 0.8, 1), "test": ImageSplit(0.8, 1, 4)},
        2,
    ),
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
MIB = 2**20
# The factor of the initial patch kernel in pre-training; docs/results.md,
# "Accuracy compared with keras-hub", has the reason.
KERNEL_SCALE = 0.2
# The model whose memory is estimated beside that of the trained one.
LARGE_MODEL, LARGE_BATCH = "B/16", 32

PRETRAINING = Recipe(
    model="Pico/2",
    patch_size=4,
    image_size=IMAGE_SIDE,
    batch_size=64,
    total_steps=3000,
    learning_rate=2e-3,
    warmup_steps=100,
    weight_decay=0.05,
    steps_per_loop=10,
    peak_tflops=1.0,  # Not measured.
)
FINE_TUNING_RECIPE = dataclasses.replace(
    PRETRAINING, batch_size=32, total_steps=300, warmup_steps=30
)


@dataclasses.dataclass(frozen=True)
class Result:
    """One fine-tuning.

    Args:
        purpose: "choice" of the learning rate, or "report".
        way: A key of WAYS.
        learning_rate: The highest.
        seed: Of the head, the LoRA updates and the order.
        accuracy: On images that were not trained on.
        trained: Number of trained parameters.
        memory: Estimated bytes of a step.
        large_memory: The same for the large model.
        milliseconds: Median time of an update.
    """

    purpose: str
    way: str
    learning_rate: float
    seed: int
    accuracy: float
    trained: int
    memory: int
    large_memory: int
    milliseconds: float


class Stopwatch(keras.callbacks.Callback):
    """Records the time of an update in each call of the loop but the first."""

    def __init__(self):
        super().__init__()
        self.milliseconds, self.step = [], 0

    def on_train_batch_end(self, batch, logs=None):
        if self.step:
            updates = logs["step"] - self.step
            self.milliseconds.append(1000 * logs["seconds"] / updates)
        self.step = logs["step"]


def main(arguments: list[str] | None = None) -> int:
    """Run everything, print the table and write the CSV file."""
    options = parse(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(options.seeds, pathlib.Path(folder)):
            print(result, flush=True)
            results.append(result)
            # After each, so that an interrupted run keeps its results.
            write_table(options.csv, [dataclasses.asdict(r) for r in results])
    print(describe(results))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number, from 0")
    add_csv_option(parser.add_argument, "fine_tuning")
    return parser.parse_args(arguments)


def measure(num_seeds: int, folder: pathlib.Path) -> Iterator[Result]:
    """Yield the results of the choice, then those of the report."""
    for name, arguments in IMAGES.items():
        write_images(folder / name, *arguments)
    initial = folder / "model.keras"
    recipe = dataclasses.replace(
        PRETRAINING, dataset=f"folder:{folder / 'first'}"
    )
    job, logs, _ = run(recipe, folder)
    job.loop.model.save(initial)
    print(f"pre-training: {logs['val_accuracy']:.2%}", flush=True)
    tune = functools.partial(fine_tune, folder, initial)
    choice = []
    for way in WAYS:
        for rate in RATES:
            choice.append(tune("choice", way, rate, CHOICE_SEED))
            yield choice[-1]
    for seed in range(num_seeds):
        for way in WAYS:
            rate = most_accurate_rate(r for r in choice if r.way == way)
            yield tune("report", way, rate, seed)


def fine_tune(folder, initial, purpose, way, rate, seed) -> Result:
    """Return the result of one fine-tuning."""
    recipe = dataclasses.replace(
        FINE_TUNING_RECIPE,
        dataset=f"folder:{folder / purpose}",
        init_from=str(initial),
        init_head="reset",
        learning_rate=rate,
        seed=seed,
        **WAYS[way],
    )
    job, logs, milliseconds = run(recipe, folder)
    memory = estimate_memory(
        job.loop.model, recipe.batch_size, job.loop.optimizer
    )
    return Result(
        purpose,
        way,
        rate,
        seed,
        float(logs["val_accuracy"]),
        sum(
            int(w.value.shape.num_elements())
            for w in job.loop.model.trainable_weights
        ),
        memory.total,
        large_memory(way),
        milliseconds,
    )


def run(recipe: Recipe, folder: pathlib.Path):
    """Train; return the job, the last logs, and the time of an update."""
    keras.backend.clear_session()
    job = prepare(recipe, str(folder / "run"))
    if not recipe.init_from:
        kernel = job.loop.model.get_layer("patch_encoder").kernel
        kernel.assign(KERNEL_SCALE * kernel)
    stopwatch = Stopwatch()
    logs = train_job(job, [stopwatch])
    return job, logs, statistics.median(stopwatch.milliseconds)


@functools.cache
def large_memory(way: str) -> int:
    """Return the estimated bytes of a step of the large model."""
    model = VisionTransformer(VARIANTS[LARGE_MODEL].config)
    choose_trained(model, dataclasses.replace(FINE_TUNING_RECIPE, **WAYS[way]))
    optimizer = make_optimizer("adamw", model.trainable_variables, 1e-3)
    return estimate_memory(model, LARGE_BATCH, optimizer).total


def describe(results: list[Result]) -> str:
    """Return the means over the seeds as a Markdown table."""
    rows = []
    for way in WAYS:
        own = [r for r in results if (r.purpose, r.way) == ("report", way)]
        accuracies = [100 * r.accuracy for r in own]
        rows.append(
            [
                way,
                f"{own[0].trained:,}",
                f"{own[0].memory / MIB:.1f} MiB",
                f"{own[0].large_memory / MIB:,.0f} MiB",
                f"{statistics.median(r.milliseconds for r in own):.0f} ms",
                f"{own[0].learning_rate:g}",
                f"{statistics.mean(accuracies):.1f} %",
                f"{min(accuracies):.1f} to {max(accuracies):.1f} %",
            ]
        )
    columns = [
        *("trained", "parameters", "memory", f"memory of {LARGE_MODEL}"),
        *("update", "learning rate", "accuracy", "of the seeds"),
    ]
    return format_table(columns, rows)


if __name__ == "__main__":
    sys.exit(main())
