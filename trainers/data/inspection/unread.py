"""Files and splits of a data set that are not read."""

from collections.abc import Iterator

from trainers.data.datasets import ImageDataset
from trainers.data.file_lists import FILE_LISTS
from trainers.data.inspection.examination import Examined
from trainers.data.inspection.findings import (
    NUM_FILES_LISTED,
    NUM_MISSING_LISTED,
    Finding,
    judge_classes,
)
from trainers.data.readers.folder import (
    count_other_files,
    list_empty_classes,
    list_loose_images,
)
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import printable
from trainers.data.split_names import EVAL_SPLITS, meaning_of


def find_unread(dataset: ImageDataset) -> list[Finding]:
    """Return findings on the unread files and splits of a data set.

    Args:
        dataset: The data set; of others nothing is found.
    """
    if not isinstance(dataset.reader, ImageFiles):
        return []
    found = [*judge_splits(dataset)]
    kind, _, path = dataset.name.partition(":")
    if FILE_LISTS[kind].has_class_folders:
        found += judge_empty_classes(
            list_empty_classes(path, dataset.class_names)
        )
        found += judge_loose_images(list_loose_images(path))
        found += judge_other_files(count_other_files(path))
    return found


def judge_labels(dataset: ImageDataset) -> Iterator[Finding]:
    """Find classes without images by the labels alone, without reading images.

    `judge_classes` finds the same after reading them. Of other data sets than
    image files nothing is found.
    """
    if not isinstance(dataset.reader, ImageFiles):
        return
    rows = [
        Examined("", split, dataset.class_names[label], "")
        for split in (dataset.train_split, dataset.eval_split)
        for name, first, last in dataset.ranges(split)
        for _, label in dataset.reader.files[name][first:last]
    ]
    yield from judge_classes(rows, dataset.class_names)


def judge_splits(dataset: ImageDataset) -> Iterator[Finding]:
    """Find splits that are neither for training nor for evaluation."""
    used = f"{dataset.train_split}+{dataset.eval_split}"
    for split, info in dataset.reader.splits.items():
        if split in used:
            continue
        advice = f"--train_split or --eval_split={split} reads it"
        if dataset.train_split and meaning_of(split) in EVAL_SPLITS:
            advice = (
                f"with --eval_split={split}, training measures itself and "
                f"chooses the best model on it, and {dataset.eval_split!r} "
                "stays unseen until evaluate "
                f"--eval_split={dataset.eval_split}"
            )
        yield Finding(
            "warning",
            f"the split {split!r}, {info.num_examples:,} images, is not read; "
            f"{advice}",
        )


def judge_empty_classes(names: list[str]) -> Iterator[Finding]:
    """Find folders that would be classes if they had images."""
    if names:
        more = len(names) - NUM_MISSING_LISTED
        yield Finding(
            "error",
            "no image that can be read in "
            f"{', '.join(map(repr, names[:NUM_MISSING_LISTED]))}"
            f"{f' and {more} more' if more > 0 else ''}; add some or remove "
            "the folder",
        )


def judge_loose_images(paths: list[str]) -> Iterator[Finding]:
    """Find images that are not read, because no folder gives their class."""
    if paths:
        more = len(paths) - NUM_FILES_LISTED
        number = "1 image" if len(paths) == 1 else f"{len(paths):,} images"
        yield Finding(
            "warning",
            f"{number} outside the folders of the classes, not read: "
            f"{', '.join(map(printable, paths[:NUM_FILES_LISTED]))}"
            f"{f' and {more} more' if more > 0 else ''}; move each into the "
            "folder of its class",
        )


def judge_other_files(counts: dict[str, int]) -> Iterator[Finding]:
    """Find files that are not read, because no image ends as they do."""
    if counts:
        listed = ", ".join(f"{n:,} of {kind}" for kind, n in counts.items())
        yield Finding(
            "warning",
            f"files in the folders of the classes that are not read: {listed}; "
            "images must end as their format does, such as .jpg or .png",
        )
