"""Measure reading JPEG files, and training: python -m benchmarks.loading.

The files are parts of two photos that scikit-learn ships, 500 x 375 pixels.
Each package runs in a process of its own, in turns with the others, on the
processors that --processors names; meanwhile the others are stopped, as they
would read ahead. The packages other than ours and Keras need
an environment that has them:

    python -m benchmarks.loading --torch_python=.venv-torch/bin/python

With --models, whole trainings are measured: ours on both engines, timm's model
with its loader, and that of transformers with torchvision's.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import statistics
import sys
import tempfile

import numpy as np

from benchmarks.compare import model_config
from benchmarks.harness import (
    OURS,
    describe_machine,
    find_program,
    make_parser,
    median_ratio,
    names_of,
    write_table,
)
from benchmarks.pipe import Worker
from benchmarks.worker_loading import (
    AUGMENTATIONS,
    PACKAGES,
    SIDE,
    TRAININGS,
)
from keras_vit import VARIANTS
from keras_vit.tables import format_table

WIDTH, HEIGHT = 500, 375
NUM_CLASSES = 10


def split_processors(text: str) -> list[int]:
    """Return the numbers of processors, counted from 0."""
    return [int(number) for number in text.split(",")]


OPTIONS = [
    (
        "--packages",
        names_of(PACKAGES),
        list(PACKAGES),
        "to measure beside ours",
    ),
    ("--models", names_of(VARIANTS), [], "to train on the batches; or to read"),
    ("--augment", names_of(AUGMENTATIONS), list(AUGMENTATIONS), "what is done"),
    ("--processors", split_processors, [0], "their numbers, with commas"),
    ("--files", int, 2000, "number of files"),
    ("--images", int, 1024, "read in a round"),
    ("--batch_size", int, 64, "images of a batch"),
    ("--rounds", int, 5, "of each case"),
    ("--torch_python", find_program, None, "that has the other packages"),
    ("--csv", str, None, "file to write the seconds to"),
]


def make_files(folder: pathlib.Path, count: int):
    """Write JPEG files into folders of classes; each is another one.

    Args:
        folder: An empty folder.
        count: Number of files.
    """
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(x) for x in load_sample_images().images]
    rng = np.random.default_rng(0)
    for index in range(count):
        photo = photos[index % len(photos)]
        w = int(rng.integers(400, photo.width + 1))
        h = w * HEIGHT // WIDTH
        h = min(h, photo.height)
        left = int(rng.integers(photo.width - w + 1))
        top = int(rng.integers(photo.height - h + 1))
        box = (left, top, left + w, top + h)
        image = photo.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box)
        path = folder / f"class_{index % NUM_CLASSES}" / f"{index:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path, quality=90)


def measure(
    options, folder: pathlib.Path, augment: str, model: str | None = None
) -> tuple[dict, dict]:
    """Return the seconds of each round, and the versions, by package."""
    packages = {OURS: None, **dict.fromkeys(options.packages)}
    if model:
        packages = dict.fromkeys(TRAININGS)
    if augment != "crop":
        packages.pop("grain", None)  # It has no operations on images.
    case = {
        "folder": str(folder),
        "augment": augment,
        "batch_size": options.batch_size,
        "images": options.images,
        "processors": options.processors,
        "threads": 1,
    }
    if model:
        config = model_config(model, SIDE)
        config = dataclasses.replace(config, num_classes=NUM_CLASSES)
        case |= {
            "model": model,
            "precision": "float32",
            "config": dataclasses.asdict(config),
        }
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in packages:
            is_here = name in (OURS, "keras", "ours_jax")
            python = sys.executable if is_here else options.torch_python
            if python is None:
                continue
            module = "benchmarks.worker_loading"
            backend = "jax" if name == "ours_jax" else "tensorflow"
            request = {**case, "package": name, "backend": backend}
            worker = Worker(module, request, python)
            workers[name] = stack.enter_context(worker)
            worker.pause()
        seconds = {name: [] for name in workers}
        for _ in range(options.rounds):
            for name, worker in workers.items():
                worker.resume()
                seconds[name].append(worker.ask("step"))
                worker.pause()  # It would read ahead.
        versions = {}
        for worker in workers.values():
            versions |= worker.versions
    return seconds, versions


def describe(options, results: dict, versions: dict) -> str:
    """Return the table of images a second, and of the ratios to ours."""
    rows = []
    for case, seconds in results.items():
        for name, times in seconds.items():
            rate = options.images / statistics.median(times)
            ratio = median_ratio(times, seconds[OURS])
            rows.append([*case, name, f"{rate:.3g}", f"{ratio:.2f}"])
    table = format_table(
        ["augmentation", "model", "package", "images/s", "time / ours"], rows
    )
    count = len(options.processors)
    lines = describe_machine(versions, count)
    return "\n".join([*lines, "", table])


def main(arguments: list[str] | None = None):
    """Run the command."""
    options = make_parser(__doc__, OPTIONS).parse_args(arguments)
    results, versions = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_files(folder, options.files)
        for augment, model in itertools.product(
            options.augment, options.models or [""]
        ):
            found = measure(options, folder, augment, model)
            results[augment, model] = found[0]
            versions |= found[1]
    print(describe(options, results, versions))
    if options.csv:
        rows = [
            {
                "augment": augment,
                "model": model,
                "package": name,
                "round": number,
                "seconds": x,
            }
            for (augment, model), seconds in results.items()
            for name, times in seconds.items()
            for number, x in enumerate(times)
        ]
        write_table(pathlib.Path(options.csv), rows)


if __name__ == "__main__":
    main()
