"""Measure the time to read a folder of images: python -m benchmarks.input.

The trainer's pipeline is compared with a bare one of tf.data: read, decode,
crop, mirror, scale. The result is the ratio of their times. Both take turns in
one process, so the load of the machine is the same for both.
"""

import pathlib
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks.harness import make_parser, quartiles
from trainers.augment.augmentation import parse_augmentation
from trainers.data.batches import train_batches
from trainers.data.datasets import open_dataset

AUGMENT = "inception_crop|flip_lr"
SIZE = (224, 224)
BATCH = 32


def write_photos(path: pathlib.Path, count: int = 256):
    """Write a folder of JPEGs, 500 x 375 pixels of clouds and some noise."""
    random = np.random.default_rng(0)
    for index in range(count):
        clouds = tf.image.resize(
            random.uniform(0, 255, (32, 42, 3)), (375, 500), "bicubic"
        )
        pixels = clouds + random.normal(0, 6, (375, 500, 1))
        pixels = tf.saturate_cast(pixels, tf.uint8)
        file = path / "train" / str(index % 4) / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_jpeg(pixels, quality=90).numpy())


def bare_batches(dataset):
    """Return the batches of a pipeline that trusts its files."""
    operations = parse_augmentation(AUGMENT, SIZE)
    paths, labels = zip(*dataset.reader.files["train"])

    def prepare(index, example):
        path, label = example
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        seed = tf.stack([tf.constant(0, tf.int64), index])
        image = operations.image(tf.cast(image, tf.float32), seed)
        return image / 127.5 - 1, tf.one_hot(label, 4)

    return (
        tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
        .shuffle(len(paths))
        .repeat()
        .enumerate()
        .map(prepare, tf.data.AUTOTUNE, deterministic=True)
        .batch(BATCH, drop_remainder=True)
        .prefetch(2)
    )


def wait_until_idle(quiet: float = 0.3):
    """Return when the buffers are full: the process does nothing more."""
    used = -1.0
    while time.process_time() - used > 0.02 * quiet:
        used = time.process_time()
        time.sleep(quiet)


def measure(iterators: dict, rounds: int, batches: int = 12) -> dict:
    """Return the milliseconds of the processor per image, a row a round."""
    found = {name: [] for name in iterators}
    for _ in range(rounds):
        for name, iterator in iterators.items():
            wait_until_idle()
            start = time.process_time()
            for _ in range(batches):
                next(iterator)
            wait_until_idle()
            used = time.process_time() - start
            found[name].append(1e3 * used / (batches * BATCH))
    return found


def main():
    """Print a row for each pipeline."""
    rows = [("--rounds", int, 20, "of each pipeline")]
    rounds = make_parser(__doc__, rows).parse_args().rounds
    with tempfile.TemporaryDirectory() as path:
        write_photos(pathlib.Path(path))
        dataset = open_dataset(f"folder:{path}", eval_split="train")
        choices = {"image_size": SIZE, "batch_size": BATCH}
        pipelines = {
            "bare": bare_batches(dataset),
            "trainer": train_batches(dataset, augment=AUGMENT, **choices),
        }
        found = measure({n: iter(p) for n, p in pipelines.items()}, rounds)
    for name, used in found.items():
        ratios = np.array(used) / found["bare"]
        low, middle, high = quartiles(ratios)
        print(
            f"{name:8} {np.median(used):.2f} ms an image, "
            f"{middle:.2f} of the bare one (quartiles {low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
