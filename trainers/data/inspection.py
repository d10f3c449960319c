"""Inspecting the images of a data set: reading, findings, the page."""

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import html
import io
import itertools
import math
import os
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.preprocessing.description import as_colours
from keras_vit.preprocessing.image_files import BITS_PER_SAMPLE, NUMPY_START
from keras_vit.progress import ProgressBar
from keras_vit.tables import list_first
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import FILE_ERRORS, decode_file
from trainers.data.file_lists import FILE_LISTS
from trainers.data.labels import SEGMENT, classes_of
from trainers.data.map_pictures import (
    LEGEND_STYLE,
    limits_of,
    make_legend,
    paint_over,
)
from trainers.data.maps import check_size
from trainers.data.pixels import USUAL, PixelOptions
from trainers.data.readers.folder import (
    count_other_files,
    list_empty_classes,
    list_loose_images,
)
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import can_read_heif, printable
from trainers.data.readers.pairs import PairFiles
from trainers.data.splits import EVAL_SPLITS, meaning_of
from trainers.pages import make_figure, make_table, write_html
from trainers.paths import as_path

SIDE = 32  # Pixels of the grey image that a look is computed from.
KEPT = 8  # Lowest frequencies in each direction.
LEAST_CONTRAST = 4.0  # Standard deviation of grey levels; less looks alike.
ORIENTATION = 0x0112  # Tag of Exif.
THUMBNAIL_SIDE = 96


class PixelAnswers(NamedTuple):
    """The map of an image.

    Shapes:
        found: (H, W); NaN where nothing is known.

    Args:
        found: The class or the depth of each pixel.
        label: Its classes or its range of depths, as text.
        classes: The classes of its pixels; () of depths.
    """

    found: np.ndarray
    label: str
    classes: tuple[str, ...] = ()


class Examined(NamedTuple):
    """The properties of an image.

    Args:
        name: The path of the file, or its place in a file of records.
        split: The split that contains it.
        label: Its class, or a list of classes, as text.
        digest: SHA-256 of the file.
        fault: Why it cannot be read; empty if it can.
        look: 64 bits that hardly change when the image is stored anew; None
            for images without contrast.
        size: (width, height) as it is stored, in pixels.
        kind: Format and colours, such as "JPEG RGB".
        is_turned: Whether Exif data say that it must be turned.
        num_frames: Number of frames.
        is_transparent: Whether a pixel is not opaque.
        thumbnail: A small JPEG of it.
        map_thumbnail: One with its map over it, if it has an answer for each
            pixel.
        labels: Its labels, if it may have several; None for one class.
        levels: See `read_levels`.
        has_range: Whether a range says which numbers are black and white.
    """

    name: str
    split: str
    label: str
    digest: str
    fault: str = ""
    look: int | None = None
    size: tuple[int, int] = (0, 0)
    kind: str = ""
    is_turned: bool = False
    num_frames: int = 1
    is_transparent: bool = False
    thumbnail: bytes = b""
    map_thumbnail: bytes = b""
    labels: tuple[str, ...] | None = None
    levels: tuple[float, float] | None = None
    has_range: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that the image counts for."""
        return (self.label,) if self.labels is None else self.labels


def examine(
    name: str,
    split: str,
    labels: str | tuple[str, ...],
    encoded: bytes,
    pixels: PixelOptions = USUAL,
    read_map: Callable[[tuple[int, int]], PixelAnswers] | None = None,
) -> Examined:
    """Return the properties of an image.

    Args:
        name: The path of the file, or its place in a file of records.
        split: The split that contains it.
        labels: Its class, or a tuple of its labels.
        encoded: The bytes of the file.
        pixels: How they are read.
        read_map: With an answer for each pixel: takes the size of the image
            and returns its map. Raises a ValueError if that is none of the
            image.
    """
    levels = read_levels(encoded)
    digest = hashlib.sha256(encoded).hexdigest()
    label, several = labels, None
    if isinstance(labels, tuple):
        label, several = ", ".join(labels) or "no label", labels
    fault, answers = "", None
    try:
        image = decode_file(encoded, pixels)
    except ValueError as error:
        fault = describe_fault(encoded, error)
    if read_map and not fault:
        try:
            answers = read_map(image.shape[:2])
            label, several = answers.label, answers.classes
        except ValueError as error:
            fault = str(error)
    if fault:
        return Examined(
            name, split, label, digest, fault, labels=several, levels=levels
        )
    height, width = image.shape[:2]
    shown = to_colours(image)
    return Examined(
        name,
        split,
        label,
        digest,
        look=compute_look(shown),
        thumbnail=make_thumbnail(shown),
        map_thumbnail=make_map_thumbnail(shown, answers) if answers else b"",
        labels=several,
        levels=levels,
        has_range=pixels.pixel_range is not None,
        **({"size": (width, height)} | read_facts(encoded)),
    )


def read_facts(encoded: bytes) -> dict:
    """Return what Pillow tells of an image, fields of `Examined`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return {
                "size": image.size,
                "kind": f"{image.format} {image.mode}",
                "is_turned": image.getexif().get(ORIENTATION, 1) != 1,
                "num_frames": getattr(image, "n_frames", 1),
                "is_transparent": is_transparent(image),
            }
    except Exception:  # It raises any kind; the pixels could be read.
        return {}


def read_levels(encoded: bytes) -> tuple[float, float] | None:
    """Return the least and the largest number of a file of more than 8 bits.

    None for files of 8 bits, and of colours of 16, of which Pillow drops bits.
    """
    from PIL import Image

    try:
        if encoded.startswith(NUMPY_START):
            numbers = np.load(io.BytesIO(encoded))
            return None if numbers.dtype == np.uint8 else _limits([numbers])
        with Image.open(io.BytesIO(encoded)) as image:
            bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))
            if not image.mode.startswith(("I", "F")) or max(bits) < 16:
                return None  # One of 12 bits states its white.
            frames = range(getattr(image, "n_frames", 1))
            return _limits(map(np.asarray, map(_frame(image), frames)))
    except Exception:  # Pillow raises any kind; `examine` says what is wrong.
        return None


def _frame(image):
    def read(index):
        image.seek(index)
        return image

    return read


def _limits(arrays):
    pairs = [(np.nanmin(x), np.nanmax(x)) for x in arrays]
    return float(min(p[0] for p in pairs)), float(max(p[1] for p in pairs))


def is_transparent(image) -> bool:
    """Return whether an image of Pillow has a pixel that is not opaque."""
    if not image.has_transparency_data:
        return False
    return image.convert("RGBA").getchannel("A").getextrema()[0] < 255


def describe_fault(encoded: bytes, error: Exception) -> str:
    """Return why a file cannot be read, in a few words."""
    if not encoded:
        return "the file is empty"
    is_heif = encoded[4:8] == b"ftyp" and encoded[8:12] in HEIF_BRANDS
    if is_heif and not can_read_heif():
        return "a HEIC image, which needs the package pi-heif"
    text = str(error)
    if "truncated" in text:
        return "the file is cut off"
    if "exceeds limit" in text:
        return "too many pixels"
    reason = re.fullmatch(r"Not an image that can be read: .*? \((.+)\)", text)
    if reason and "`" in reason[1]:  # It names a flag.
        return reason[1]
    if "identify" in text or "Not an image" in text:
        return "not an image"
    return text or type(error).__name__


def compute_look(pixels: np.ndarray) -> int | None:
    """Return 64 bits that images of the same content have in common.

    They say which of the lowest frequencies of the grey image are above their
    median.

    Shapes:
        pixels: (H, W, 3), uint8.

    Reference: The hash of phash.org, with the median taken without the mean.
    """
    from PIL import Image

    grey = Image.fromarray(pixels).convert("L")
    grey = grey.resize((SIDE, SIDE), Image.Resampling.BOX)
    grey = np.asarray(grey, "float64")
    if grey.std() < LEAST_CONTRAST:
        return None
    places = np.arange(SIDE)
    waves = np.cos(np.pi / SIDE * np.outer(places[:KEPT], places + 0.5))
    low = (waves @ grey @ waves.T).ravel()
    bits = low > np.median(low[1:])
    return int.from_bytes(np.packbits(bits).tobytes())


def to_colours(image: np.ndarray) -> np.ndarray:
    """Return pixels (H, W, C) that `decode_file` read as (H, W, 3), uint8."""
    shown = as_colours(image).astype("uint8")
    return np.repeat(shown, 3 // shown.shape[-1], -1)


def make_thumbnail(pixels: np.ndarray, side: int = THUMBNAIL_SIDE) -> bytes:
    """Return a JPEG of at most `side` pixels a side.

    Shapes:
        pixels: (H, W, 3), uint8.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    return stream.getvalue()


def make_map_thumbnail(
    pixels: np.ndarray, answers: PixelAnswers, side: int = THUMBNAIL_SIDE
) -> bytes:
    """Return a JPEG of an image with its map over it.

    Shapes:
        pixels: (H, W, 3), uint8.
    """
    step = -(-max(pixels.shape) // side)  # Classes have no mean.
    image, found = pixels[::step, ::step], answers.found[::step, ::step]
    limits = None if answers.classes else limits_of(found)
    painted = np.round(255 * paint_over(image / 255, found, limits))
    return make_thumbnail(painted.astype("uint8"), side)


HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")


def inspect_images(dataset: ImageDataset) -> list[Examined]:
    """Read each image of the training and the evaluation split.

    Shows a progress bar.

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
        pixels = getattr(dataset.reader, "pixels", USUAL)
        for split in splits:
            for name, labels, encoded in read_files(dataset, split):
                read_map = None
                if dataset.maps:
                    read_map = functools.partial(
                        read_pixel_answers, dataset, labels
                    )
                    labels = ()
                waiting.append(
                    pool.submit(
                        examine, name, split, labels, encoded, pixels, read_map
                    )
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
) -> Iterator[tuple[str, str | tuple[str, ...], bytes]]:
    """Yield the name, the class and the bytes of the images of a split.

    Of several labels, a tuple is in place of the class; several classes that
    are all right are joined by commas. With an answer for each pixel, it is
    what `load_map` of the reader takes. A file that is missing has no bytes.
    """
    names, reader = dataset.class_names, dataset.reader
    for stored, label, name in reader.read(dataset.ranges(split)):
        try:
            encoded = reader.fetch(stored).numpy()
        except FILE_ERRORS:
            encoded = b""
        if dataset.maps:
            yield printable(name.numpy()), label.numpy(), encoded
            continue
        classes = np.atleast_1d(label.numpy())
        if dataset.has_several_labels:
            classes = np.flatnonzero(classes == 1)
        labels = tuple(names[int(n)] for n in classes if n >= 0)
        if not dataset.has_several_labels:
            labels = ", ".join(labels)
        yield printable(name.numpy()), labels, encoded


def read_pixel_answers(
    dataset: ImageDataset, label, size: tuple[int, int]
) -> PixelAnswers:
    """Return the map of an image.

    Raises:
        ValueError: If the map cannot be read, nothing is known of any pixel,
            or it is of another size.
    """
    try:
        found = dataset.reader.load_map(label)
    except ValueError as error:
        if not isinstance(dataset.reader, PairFiles):
            raise
        # Without the name: the same fault of many files is one finding.
        path = printable(os.fsdecode(label))
        raise ValueError(str(error).replace(path, "the map")) from None
    check_size(found, size)
    known = np.unique(found[np.isfinite(found)])
    if not len(known):
        raise ValueError("nothing is known of any pixel of the map")
    if dataset.maps.kind != SEGMENT:
        return PixelAnswers(found, f"{known[0]:.3g} to {known[-1]:.3g} m")
    classes = tuple(dataset.class_names[int(index)] for index in known)
    return PixelAnswers(found, ", ".join(classes), classes)


NUM_FILES_LISTED = 10  # Files that a line of text names.
NUM_MISSING_LISTED = 20
NUM_PAIRS = 20
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
    counts = collections.Counter(
        (image.split, name) for image in images for name in image.classes
    )
    splits = dict.fromkeys(image.split for image in images)
    return {
        split: {name: counts[split, name] for name in class_names}
        for split in splits
    }


def count_label_sets(images: Sequence[Examined]) -> dict[str, dict[str, int]]:
    """Return how many labels images have, and which ones occur together.

    Args:
        images: Images that may have several labels; of others {} is returned.

    Returns:
        Two tables by title: the number of images by number of labels, and by
        pair of labels, the most frequent pair first.
    """
    sets = [image.labels for image in images if image.labels is not None]
    if not sets:
        return {}
    numbers = collections.Counter(len(labels) for labels in sets)
    pairs = collections.Counter(
        " + ".join(pair)
        for labels in sets
        for pair in itertools.combinations(sorted(labels), 2)
    )
    return {
        "Labels an image": {str(n): numbers[n] for n in sorted(numbers)},
        "Labels that occur together": dict(pairs.most_common(NUM_PAIRS)),
    }


def judge_classes(images, class_names) -> Iterator[Finding]:
    """Find classes without images, or with few."""
    counts = count_classes(images, class_names)
    # Rare ones of several labels cannot always be in each split.
    has_several = any(image.labels is not None for image in images)
    for split, numbers in counts.items():
        missing = [name for name, count in numbers.items() if not count]
        if missing:
            yield Finding(
                "warning" if has_several else "error",
                f"the split {split!r} has no image of {_list(missing)}; add "
                "some or remove the class",
            )
        few = [name for name in numbers if 0 < numbers[name] < FEW_OF_CLASS]
        if few:
            yield Finding(
                "warning",
                f"the split {split!r} has fewer than {FEW_OF_CLASS} images of "
                f"{_list(few)}; that is too few to learn them, or to measure "
                "how well they were learned",
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
    if not class_names:
        return
    counts = count_classes(images, class_names)
    totals = {
        name: sum(numbers[name] for numbers in counts.values())
        for name in class_names
    }
    largest = max(totals, key=totals.get)
    smallest = min(totals, key=totals.get)
    if totals[largest] > LARGEST_IMBALANCE * totals[smallest]:
        # Classes of pixels cannot be weighted.
        has_maps = any(image.map_thumbnail for image in images)
        is_useless = is_balanced or has_maps or not totals[smallest]
        yield Finding(
            "warning",
            f"{largest!r} has {totals[largest]:,} images, {smallest!r} only "
            f"{totals[smallest]:,}" + ("" if is_useless else BALANCE_ADVICE),
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
    is_one_class = all(image.labels is None for image in images)
    several = ", or let an image have both with --labels=several"
    for how, level, advice, effect, groups in (
        (
            "the same content",
            "warning",
            "correct the classes" + (several if is_one_class else ""),
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
        differ = [g for g in groups if len({i.classes for i in g}) > 1]
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


def judge_depth(images, class_names) -> Iterator[Finding]:
    """Find images of more than 8 bits whose black and white nobody stated."""
    deep = [x for x in images if x.levels is not None and not x.has_range]
    if not deep:
        return
    low = min(x.levels[0] for x in deep)
    high = max(x.levels[1] for x in deep)
    is_whole = 0 <= low and float(high).is_integer() and high > 1
    if is_whole:  # White is the largest number of so many bits.
        proposed = f"0,{2 ** math.ceil(math.log2(high + 1)) - 1}"
    else:
        proposed = f"{low:g},{high:g}"
    is_dark = any(x.fault for x in deep) or high < 2**15
    yield Finding(
        "warning" if is_dark else "note",
        f"{_count([[x] for x in deep])}: more than 8 bits a channel, with "
        f"numbers from {low:g} to {high:g}; without a --pixel_range, white is "
        f"65535, and --pixel_range={proposed} would use them whole",
        [[x] for x in deep],
    )


def _list(class_names):
    return list_first([*map(repr, class_names)], NUM_MISSING_LISTED)


def _count(groups):
    number = sum(map(len, groups))
    return "1 image" if number == 1 else f"{number:,} images"


def _has_other_ending(image):
    from PIL import Image

    # Examples of TFRecord files have names with an ending of no image.
    ending = os.path.splitext(image.name)[1].lower()
    named = Image.registered_extensions().get(ending)
    kind = image.kind.partition(" ")[0]  # Empty if Pillow cannot read it.
    return bool(kind) and named not in (None, SAME_ENDINGS.get(kind, kind))


LEVELS = ("error", "warning", "note")
JUDGES: tuple[Callable, ...] = (
    judge_classes,
    judge_names,
    judge_files,
    judge_copies,
    judge_pixels,
    judge_depth,
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
MOST_COMPARED = 2**20  # Pairs at a time.
BITS = np.array([number.bit_count() for number in range(2**16)], "uint8")


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
    """Yield pairs that join all looks with few different bits.

    Of five parts of the bits, at least one is equal if four bits differ.
    """
    values, first, places = np.unique(
        np.array(looks, "uint64"), return_index=True, return_inverse=True
    )
    yield from enumerate(first[places])
    width = -(-64 // NUM_BANDS)
    for band in range(NUM_BANDS):
        keys = values >> np.uint64(width * band) & np.uint64((1 << width) - 1)
        order = np.argsort(keys, kind="stable")
        ends = np.flatnonzero(np.diff(keys[order])) + 1
        for bucket in np.split(order, ends):
            step = max(MOST_COMPARED // len(bucket), 1) if len(bucket) else 1
            for start in range(0, len(bucket) - 1, step):
                rows, columns = bucket[start:][:step], bucket[start:]
                different = values[rows][:, None] ^ values[columns]
                is_near = _count_bits(different) <= MOST_DIFFERENT_BITS
                for row, column in zip(*np.nonzero(np.triu(is_near, 1))):
                    yield first[rows[row]], first[columns[column]]


def _count_bits(numbers: np.ndarray) -> np.ndarray:
    """Return how many bits of numbers of 64 bits are set."""
    parts = numbers.view("uint16").reshape(*numbers.shape, 4)
    return BITS[parts].sum(-1, dtype="uint8")


def find_unread(dataset: ImageDataset) -> list[Finding]:
    """Return findings on a data set without its images: what is not read.

    Of several labels also which are not known, or those of all images.
    """
    found = [*judge_unknown(dataset)] if dataset.has_several_labels else []
    if not isinstance(dataset.reader, ImageFiles):
        return found
    found += judge_splits(dataset)
    kind, _, path = dataset.name.partition(":")
    if kind in FILE_LISTS and FILE_LISTS[kind].has_class_folders:
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
    if not isinstance(dataset.reader, ImageFiles) or dataset.maps:
        return
    names = dataset.class_names
    rows = []
    for split in (dataset.train_split, dataset.eval_split):
        for part, first, last in dataset.ranges(split):
            for _, label in dataset.reader.files[part][first:last]:
                classes = tuple(names[n] for n in classes_of(label))
                labels = classes if dataset.has_several_labels else None
                row = Examined("", split, ", ".join(classes), "", labels=labels)
                rows.append(row)
    yield from judge_classes(rows, names)


def judge_unknown(dataset: ImageDataset) -> Iterator[Finding]:
    """Find labels that all images have, and how many are unknown."""
    for split in filter(None, (dataset.train_split, dataset.eval_split)):
        labels = dataset.labels(split)
        names = np.array(dataset.class_names, dtype=object)
        always = names[(labels == 1).any(0) & ~(labels == 0).any(0)]
        if len(always):
            yield Finding(
                "warning",
                f"the split {split!r} has no image without {_list(always)}: a "
                "model learns to give it always, and no mean figure counts it",
            )
        unknown = np.isnan(labels).sum(0)
        if np.isnan(labels).all():
            yield Finding(
                "error",
                f"the split {split!r} has no image with a known label; nothing "
                "can be learned from it or measured on it",
            )
        elif unknown.any():
            counts = [
                f"{name!r} of {n:,}" for name, n in zip(names, unknown) if n
            ]
            listed = list_first(counts, NUM_MISSING_LISTED)
            yield Finding(
                "note",
                f"nobody knows, in the {len(labels):,} images of the split "
                f"{split!r}, the label {listed}; these do not count",
            )


def judge_splits(dataset: ImageDataset) -> Iterator[Finding]:
    """Find splits that are neither for training nor for evaluation."""
    used = {
        name
        for split in (dataset.train_split, dataset.eval_split)
        if split
        for name, _, _ in dataset.ranges(split)
    }
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
        yield Finding(
            "error",
            f"no image that can be read in {_list(names)}; add some or remove "
            "the folder",
        )


def judge_loose_images(paths: list[str]) -> Iterator[Finding]:
    """Find images that are not read, because no folder gives their class."""
    if paths:
        listed = list_first([*map(printable, paths)], NUM_FILES_LISTED)
        yield Finding(
            "warning",
            f"{_count([paths])} outside the folders of the classes, not read: "
            f"{listed}; move each into the folder of its class",
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


TITLE_BEGINNING = "Data set "
NUM_GROUPS = 24  # Of a finding.
PICTURES_PER_GROUP = 24  # Of a group.
NUM_SAMPLES = 12  # Of a class and split, in the contact sheet.
NUM_CLASSES = 100  # In the contact sheet.


def write_data_page(
    path: str | os.PathLike,
    dataset: str,
    images: Sequence[Examined],
    class_names: Sequence[str],
    findings: Sequence[Finding],
):
    """Write the counts, the findings and a contact sheet of a data set."""
    of_classes = f" of {len(class_names):,} classes" if class_names else ""
    parts = [
        f"<p>{len(images):,} images{of_classes}.</p>",
        "<h2>Findings</h2>",
        *(_finding(finding) for finding in findings),
        "" if findings else "<p>Nothing was found.</p>",
        *(_counts(images, class_names) if class_names else ()),
        "<h2>Contact sheet</h2>",
        f"<p>{_legend(images, class_names)}</p>",
        *_sheet(images, class_names),
    ]
    style = DATA_STYLE + LEGEND_STYLE
    write_html(as_path(path), TITLE_BEGINNING + dataset, parts, style)


def _finding(finding):
    groups = finding.groups
    if all(len(group) == 1 for group in groups):  # They share a row.
        groups = [[image for group in groups for image in group]]
    shown = [
        _pictures(group[:PICTURES_PER_GROUP]) for group in groups[:NUM_GROUPS]
    ]
    rest = sum(map(len, finding.groups))
    rest -= sum(
        len(group[:PICTURES_PER_GROUP]) for group in groups[:NUM_GROUPS]
    )
    return (
        f'<section class="{finding.level}"><h3>{finding.level.capitalize()}'
        f"</h3><p>{html.escape(finding.text)}</p>"
        f"{'<hr>'.join(shown)}"
        + (f"<p>and {rest:,} more</p>" if rest else "")
        + "</section>"
    )


def _counts(images, class_names):
    """Yield the numbers of images of each class, and of labels."""
    yield "<h2>Images of each class</h2>"
    yield _table(images, class_names)
    for title, counts in count_label_sets(images).items():
        yield f"<h2>{title}</h2>"
        yield make_table(
            [title, "images"],
            [(name, [f"<td>{n:,}</td>"]) for name, n in counts.items()],
        )


def _table(images, class_names):
    counts = count_classes(images, class_names)
    rows = [
        (name, [f"<td>{row[name]:,}</td>" for row in counts.values()])
        for name in class_names
    ]
    return make_table(["class", *counts], rows)


def _legend(images, class_names):
    """Return the colours of the classes of maps; "" without maps."""
    if not any(image.map_thumbnail for image in images):
        return ""
    return make_legend(class_names, range(len(class_names))[:NUM_CLASSES])


def _sheet(images, class_names):
    """Yield the first images of each class, or of each split."""
    of_class = {}
    for image in images:
        for name in image.classes if class_names else [""]:
            of_class.setdefault((name, image.split), []).append(image)
    splits = dict.fromkeys(image.split for image in images)
    for name in class_names[:NUM_CLASSES] or [""]:
        if name:
            yield f"<h3>{html.escape(name)}</h3>"
        for split in splits:
            rows = of_class.get((name, split), [])[:NUM_SAMPLES]
            if rows:
                yield f"<h4>{html.escape(split)}</h4>{_pictures(rows)}"


def _pictures(images):
    return f'<div class="row">{"".join(map(_picture, images))}</div>'


def _picture(image):
    width, height = image.size
    facts = f"{image.label}, {image.split}"
    if image.thumbnail:
        facts += f", {width}x{height} {image.kind}"
    pictures = {
        image.name: image.thumbnail,
        "with its map": image.map_thumbnail,
    }
    lines = [os.path.basename(image.name), facts]
    return make_figure(pictures, image.name, lines)


DATA_STYLE = """
h4 { margin: .5rem 0 0; font-weight: normal; opacity: .8; }
section { border-left: 4px solid #888; padding: 0 1rem; margin: 1rem 0; }
section.error { border-color: #d33; }
section.warning { border-color: #c80; }
section h3 { margin: 0; font-size: 1rem; }
hr { border: 0; border-top: 1px solid var(--line); }
figure { width: 7rem; }
"""
