"""Memory of embedding very many images, and time to search their vectors.

python -m benchmarks.embeddings --rows=1000000 --width=768
"""

import argparse
import pathlib
import shutil
import tempfile
import time

import keras
import numpy as np
import psutil
import tensorflow as tf

from keras_vit.tables import format_table
from trainers.data.datasets import ImageDataset
from trainers.data.splits import count_split
from trainers.evaluation import vectors as vectors_module
from trainers.evaluation.embeddings import (
    EmbeddingWriter,
    Rows,
    make_schema,
    open_embeddings,
    write_shard,
)
from trainers.evaluation.similarity import find_nearest
from trainers.training.run_folder import NamedModel

SHARD_ROWS = 16384
SIDE = 8


class Flat:
    """Reads any number of images of 8x8 pixels, each of one grey level."""

    class_names = [str(number) for number in range(10)]
    image_shape = (SIDE, SIDE, 3)
    has_several_labels = has_exif = False
    train_split = eval_split = None
    shuffle_buffer = 1

    def __init__(self, count: int):
        self.splits = {"flat": count_split("flat", count)}

    def read(self, ranges):
        [(_, first, last)] = ranges
        return tf.data.Dataset.range(first, last).map(
            lambda n: (n, n % 10, tf.strings.as_string(n))
        )

    def fetch(self, stored):
        shade = tf.cast(stored % 256, tf.uint8)
        return tf.io.encode_png(tf.fill(self.image_shape, shade))

    def decode(self, encoded):
        return tf.io.decode_png(encoded, 3)


def megabytes() -> float:
    """Return the memory of this process."""
    return psutil.Process().memory_info().rss / 1e6


def measure_memory(folder: pathlib.Path, count: int) -> list[list]:
    """Return memory after the first and the last shard, and images a second."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(64),
            keras.layers.Dense(10),
        ]
    )
    model.save(folder / "model.keras")
    source = NamedModel(str(folder / "model.keras"))
    first = []

    class Noting(EmbeddingWriter):
        def add(self, shard):
            super().add(shard)
            first.append((megabytes(), time.perf_counter()))

    vectors_module.EmbeddingWriter = Noting
    dataset = ImageDataset("flat", Flat(count), None, "flat")
    out = folder / "small"
    vectors_module.embed(
        source,
        dataset,
        out,
        batch_size=1024,
        preprocess="",
        shard_rows=SHARD_ROWS,
    )
    vectors_module.EmbeddingWriter = EmbeddingWriter
    (begin, start), (end, stop) = first[0], first[-1]
    rate = (count - SHARD_ROWS) / (stop - start) if stop > start else 0
    return [
        ["memory after the first shard", f"{begin:,.0f} MB"],
        ["memory after the last shard", f"{end:,.0f} MB"],
        ["images of 8x8 pixels a second", f"{rate:,.0f}"],
    ]


def measure_search(folder: pathlib.Path, count: int, width: int) -> list[list]:
    """Return the seconds to open and to search random vectors."""
    description = {
        **{"source": {}, "vector": "pooled", "dtype": "float32"},
        **{"shape": [width], "num_images": count, "directory": "/"},
        **{"has_several_labels": False, "class_names": []},
    }
    out, schema = folder / "large", make_schema(description)
    writer = EmbeddingWriter(out, description)
    random = np.random.default_rng(0)
    for index, first in enumerate(range(0, count, SHARD_ROWS)):
        size = min(SHARD_ROWS, count - first)
        part = random.standard_normal((size, width), "float32")
        names = [str(first + row) for row in range(size)]
        rows = Rows(names, [None] * size, [None] * size, part)
        last = first + size
        writer.add(write_shard(out, schema, index, first, last, rows))
    queries = random.standard_normal((10, width), "float32")
    rows = []

    def timed(title, function):
        start, used = time.perf_counter(), time.process_time()
        result = function()
        seconds = time.perf_counter() - start, time.process_time() - used
        rows.append([title, *(f"{x:.2f} s" for x in seconds)])
        return result

    opened = timed(
        "open, with checksums", lambda: open_embeddings(folder / "large")
    )
    timed(
        "search from files, 1",
        lambda: find_nearest(opened.blocks(), queries[:1]),
    )
    unit = timed("read into memory", lambda: opened.vectors(unit=True))

    def search(number):
        blocks = (
            (first, unit[first : first + SHARD_ROWS])
            for first in range(0, count, SHARD_ROWS)
        )
        return find_nearest(blocks, queries[:number], are_unit=True)

    search(1)
    for number in (1, 10):
        timed(f"search in memory, {number}", lambda: search(number))  # noqa: B023
    return rows


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        found = measure_memory(folder, options.rows)
        print(format_table(["embedding", ""], found))
        found = measure_search(folder, options.rows, options.width)
        print(format_table(["queries", "seconds", "of processors"], found))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
