"""Findings on a data set: its faults and its peculiarities."""

import collections
import dataclasses
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trainers.data.datasets import ImageDataset
from trainers.data.file_lists import FILE_LISTS
from trainers.data.inspection.examination import Examined
from trainers.data.readers.folder import (
    count_other_files,
    list_empty_classes,
    list_loose_images,
)
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import printable
from trainers.data.split_names import EVAL_SPLITS, meaning_of

NUM_FILES_LISTED = 10  # Files that a line of text names.
NUM_MISSING_LISTED = 20
LARGEST_IMBALANCE = 10
FEW_OF_CLASS = 5  # A mistake less would change the accuracy by a fifth.
SMALLEST_SIDE = 32  # Pixels.
BALANCE_ADVICE = "; --class_weights=balanced lets all classes count equally"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fault or a peculiarity of a data set.

    Args:
        level: "error", "warning" or "note".
        text: What it is, and what to do.
        groups: The images that it is about; copies are in one group.
    """

    level: str
    text: str
    groups: Sequence[Sequence[Examined]] = ()

    def __str__(self):
        names = [image.name for group in self.groups for image in group]
        listed = "".join(f"\n    {name}" for name in names[:NUM_FILES_LISTED])
        if len(names) > NUM_FILES_LISTED:
            listed += f"\n    and {len(names) - NUM_FILES_LISTED} more"
        return f"{self.level.capitalize()}: {self.text}{listed}"


def find(
    images: Sequence[Examined],
    class_names: Sequence[str],
    unread: Sequence[Finding] = (),
    is_balanced: bool = False,
) -> list[Finding]:
    """Return all findings, errors first.

    Args:
        images: The images of all splits.
        class_names: The classes of the data set.
        unread: What `find_unread` found.
        is_balanced: Whether the loss already lets all classes count equally.
    """
    found = [
        finding for judge in JUDGES for finding in judge(images, class_names)
    ]
    found += judge_balance(images, class_names, is_balanced)
    found += unread
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def count_classes(
    images: Sequence[Examined], class_names: Sequence[str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the number of images of each class, for each split."""
    counts = collections.Counter((i.split, i.label) for i in images)
    splits = dict.fromkeys(image.split for image in images)
    return {
        split: {name: counts[split, name] for name in class_names}
        for split in splits
    }


def judge_classes(images, class_names) -> Iterator[Finding]:
    """Find classes without images, or with few."""
    counts = count_classes(images, class_names)
    for split, numbers in counts.items():
        missing = [name for name, count in numbers.items() if not count]
        if missing:
            more = len(missing) - NUM_MISSING_LISTED
            yield Finding(
                "error",
                f"the split {split!r} has no image of "
                f"{', '.join(map(repr, missing[:NUM_MISSING_LISTED]))}"
                f"{f' and {more} more' if more > 0 else ''}; add some or "
                "remove the class",
            )
        few = [name for name in numbers if 0 < numbers[name] < FEW_OF_CLASS]
        if few:
            more = len(few) - NUM_MISSING_LISTED
            yield Finding(
                "warning",
                f"the split {split!r} has fewer than {FEW_OF_CLASS} images of "
                f"{', '.join(map(repr, few[:NUM_MISSING_LISTED]))}"
                f"{f' and {more} more' if more > 0 else ''}; that is too "
                "few to learn them, or to measure how well they were learned",
            )


def judge_names(images, class_names) -> Iterator[Finding]:
    """Find classes whose names differ in case or Unicode form alone."""
    by_form = collections.defaultdict(list)
    for name in class_names:
        by_form[unicodedata.normalize("NFKC", name).casefold()].append(name)
    same = [names for names in by_form.values() if len(names) > 1]
    if same:
        yield Finding(
            "warning",
            "names of classes that differ only in case or in the form of "
            f"accents: {'; '.join(', '.join(map(repr, x)) for x in same)}; if "
            "they are one class, give them one name",
        )


def judge_balance(images, class_names, is_balanced) -> Iterator[Finding]:
    """Find great differences between the numbers of images of the classes."""
    counts = count_classes(images, class_names)
    totals = {
        name: sum(numbers[name] for numbers in counts.values())
        for name in class_names
    }
    largest = max(totals, key=totals.get)
    smallest = min(totals, key=totals.get)
    if totals[largest] > LARGEST_IMBALANCE * totals[smallest]:
        yield Finding(
            "warning",
            f"{largest!r} has {totals[largest]:,} images, {smallest!r} only "
            f"{totals[smallest]:,}" + ("" if is_balanced else BALANCE_ADVICE),
        )


def judge_files(images, class_names) -> Iterator[Finding]:
    """Find files that cannot be read, all at once."""
    by_fault = collections.defaultdict(list)
    for image in images:
        if image.fault:
            by_fault[image.fault].append([image])
    for fault, groups in by_fault.items():
        yield Finding(
            "error",
            f"{_count(groups)}: unreadable, {fault}; remove or replace, or "
            "train with --max_bad_examples, which skips them",
            groups,
        )


def judge_copies(images, class_names) -> Iterator[Finding]:
    """Find copies, exact and near ones."""
    for how, level, advice, effect, groups in (
        (
            "the same content",
            "warning",
            "correct the classes",
            "so the accuracy will be too high; keep each in one split",
            find_copies(images),
        ),
        (
            "the same look",
            "note",
            "if they show the same, correct the classes",
            "so the accuracy will be too high if they show the same",
            find_near_copies(images),
        ),
    ):
        differ = [g for g in groups if len({i.label for i in g}) > 1]
        across = [g for g in groups if len({i.split for i in g}) > 1]
        other = [g for g in groups if g not in differ and g not in across]
        if differ:
            yield Finding(
                "warning",
                f"{_count(differ)}: {how}, but different classes; {advice}",
                differ,
            )
        if across:
            yield Finding(
                "warning",
                f"{_count(across)}: {how} in several splits, {effect}",
                across,
            )
        if other:
            yield Finding(
                level,
                f"{_count(other)}: {how} within a class and split; one of each "
                "is enough",
                other,
            )


def judge_pixels(images, class_names) -> Iterator[Finding]:
    """Find images of unusual sizes, colours and files."""
    for text, holds in NOTES.items():
        groups = [[i] for i in images if not i.fault and holds(i)]
        if groups:
            yield Finding("note", f"{_count(groups)}: {text}", groups)


def _count(groups):
    number = sum(map(len, groups))
    return "1 image" if number == 1 else f"{number:,} images"


def _has_other_ending(image):
    from PIL import Image

    # Examples of TFRecord files have names with an ending of no image.
    ending = os.path.splitext(image.name)[1].lower()
    named = Image.registered_extensions().get(ending)
    kind = image.kind.split()[0]
    return named not in (None, SAME_ENDINGS.get(kind, kind))


LEVELS = ("error", "warning", "note")
JUDGES: tuple[Callable, ...] = (
    judge_classes,
    judge_names,
    judge_files,
    judge_copies,
    judge_pixels,
)
# JPEGs of phones, with a second picture.
SAME_ENDINGS = {"MPO": "JPEG"}
# Peculiarities of image files that are read correctly.
NOTES = {
    "stored rotated, with an Exif orientation that is applied": (
        lambda image: image.is_turned
    ),
    f"a side of less than {SMALLEST_SIDE} pixels": (
        lambda image: min(image.size) < SMALLEST_SIDE
    ),
    "the ending of another format than that of the file": _has_other_ending,
    "CMYK, converted to RGB": lambda image: "CMYK" in image.kind,
    "16 bits a channel, of which 8 are used": (
        lambda image: "I" in image.kind.split()[1]
    ),
    "partly transparent; the transparency is dropped": (
        lambda image: image.is_transparent
    ),
    "several frames, of which the first is used": (
        lambda image: image.num_frames > 1 and "MPO" not in image.kind
    ),
    "no contrast of light and dark": lambda image: image.look is None,
}


MOST_DIFFERENT_BITS = 4  # Of 64: the same photo, stored or scaled anew.
NUM_BANDS = MOST_DIFFERENT_BITS + 1
LARGEST_BUCKET = 500  # Larger ones are of bits that say nothing.


def find_copies(images: Sequence[Examined]) -> list[list[Examined]]:
    """Return the groups of images whose files are equal."""
    groups = collections.defaultdict(list)
    for image in images:
        groups[image.digest].append(image)
    return [group for group in groups.values() if len(group) > 1]


def find_near_copies(images: Sequence[Examined]) -> list[list[Examined]]:
    """Return the groups of images that look the same but are not copies.

    Two images look the same if at most MOST_DIFFERENT_BITS bits of their looks
    differ. One image of each set of equal files stands for all of them.
    """
    seen = {image.digest: image for image in images if image.look is not None}
    distinct = list(seen.values())
    parents = list(range(len(distinct)))

    def root(index):
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    for left, right in _pairs([image.look for image in distinct]):
        parents[root(left)] = root(right)
    groups = collections.defaultdict(list)
    for index, image in enumerate(distinct):
        groups[root(index)].append(image)
    return [group for group in groups.values() if len(group) > 1]


def _pairs(looks: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of looks with few different bits.

    Of five parts of the bits, at least one is equal if four bits differ.
    """
    width = -(-64 // NUM_BANDS)
    for band in range(NUM_BANDS):
        buckets = collections.defaultdict(list)
        for index, look in enumerate(looks):
            buckets[look >> (width * band) & ((1 << width) - 1)].append(index)
        for bucket in buckets.values():
            if len(bucket) > LARGEST_BUCKET:
                continue
            for place, left in enumerate(bucket):
                for right in bucket[place + 1 :]:
                    different = (looks[left] ^ looks[right]).bit_count()
                    if different <= MOST_DIFFERENT_BITS:
                        yield left, right


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
