"""Inspecting all images of a data set."""

import concurrent.futures
import os
import warnings
from collections.abc import Iterator

import numpy as np

from keras_vit.progress import ProgressBar
from trainers.data.bad_examples import FILE_ERRORS
from trainers.data.datasets import ImageDataset
from trainers.data.inspection.examination import Examined, examine
from trainers.data.readers.image_paths import printable


def inspect_images(dataset: ImageDataset) -> list[Examined]:
    """Read each image of the training and the evaluation split.

    Shows a progress bar.

    Args:
        dataset: The data set.

    Returns:
        What is known of each image, in the order of the splits.
    """
    splits = [s for s in (dataset.train_split, dataset.eval_split) if s]
    total = sum(dataset.num_examples(split) for split in splits)
    found = []
    with (
        warnings.catch_warnings(),
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        ProgressBar("Reading", "images", total) as bar,
    ):
        warnings.simplefilter("ignore")  # Pillow's, about damaged Exif data.
        waiting = []
        for split in splits:
            for name, label, encoded in read_files(dataset, split):
                waiting.append(
                    pool.submit(examine, name, split, label, encoded)
                )
                # The files that wait are in memory.
                if len(waiting) == 4 * os.cpu_count():
                    found += [task.result() for task in waiting]
                    waiting = []
                    bar.update(len(found))
        found += [task.result() for task in waiting]
        bar.update(len(found))
    return found


def read_files(
    dataset: ImageDataset, split: str
) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the class and the bytes of the images of a split.

    Several classes are joined by commas. A file that is missing has no bytes.
    """
    names, reader = dataset.class_names, dataset.reader
    for stored, label, name in reader.read(dataset.ranges(split)):
        classes = np.atleast_1d(label.numpy())
        try:
            encoded = reader.fetch(stored).numpy()
        except FILE_ERRORS:
            encoded = b""
        text = ", ".join(names[int(index)] for index in classes)
        yield printable(name.numpy()), text, encoded
