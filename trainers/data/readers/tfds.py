"""Data sets of tensorflow-datasets (TFDS), and the table DATASETS."""

import dataclasses
import functools
import logging
import operator
import re
import warnings
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.data.labels import AUTO, DEPTH, SEGMENT, LabelOptions
from trainers.data.maps import MapRule, read_numbers
from trainers.data.readers.dataset_row import DatasetRow, LabelRule, MapFeature
from trainers.data.readers.digits import (
    Digits,
    Digits0To4,
    Digits5To9,
    DigitsInPhotos,
)
from trainers.data.readers.image_files import to_vector
from trainers.data.readers.vtab import VTAB_TASKS
from trainers.data.splits import count_examples, count_split, take_ranges

IMAGENET_A = tuple(
    int(index)
    for index in """
    6 11 13 15 17 22 23 27 30 37 39 42 47 50 57 70 71 76 79 89 90 94
    96 97 99 105 107 108 110 113 124 125 130 132 143 144 150 151 207
    234 235 254 277 283 287 291 295 298 301 306 307 308 309 310 311
    313 314 315 317 319 323 324 326 327 330 334 335 336 347 361 363
    372 378 386 397 400 401 402 404 407 411 416 417 420 425 428 430
    437 438 445 456 457 461 462 470 472 483 486 488 492 496 514 516
    528 530 539 542 543 549 552 557 561 562 569 572 573 575 579 589
    606 607 609 614 626 627 640 641 642 643 658 668 677 682 684 687
    701 704 719 736 746 749 752 758 763 765 768 773 774 776 779 780
    786 792 797 802 803 804 813 815 820 823 831 833 835 839 845 847
    850 859 862 870 879 880 888 890 897 900 907 913 924 932 933 934
    937 943 945 947 951 954 956 957 959 971 972 980 981 984 986 987
    988
    """.split()
)
IMAGENET_R = tuple(
    int(index)
    for index in """
    1 2 4 6 8 9 11 13 22 23 26 29 31 39 47 63 71 76 79 84 90 94 96 97
    99 100 105 107 113 122 125 130 132 144 145 147 148 150 151 155 160
    161 162 163 171 172 178 187 195 199 203 207 208 219 231 232 234
    235 242 245 247 250 251 254 259 260 263 265 267 269 276 277 281
    288 289 291 292 293 296 299 301 308 309 310 311 314 315 319 323
    327 330 334 335 337 338 340 341 344 347 353 355 361 362 365 366
    367 368 372 388 390 393 397 401 407 413 414 425 428 430 435 437
    441 447 448 457 462 463 469 470 471 472 476 483 487 515 546 555
    558 570 579 583 587 593 594 596 609 613 617 621 629 637 657 658
    701 717 724 763 768 774 776 779 780 787 805 812 815 820 824 833
    847 852 866 875 883 889 895 907 928 931 932 933 934 936 937 943
    945 947 948 949 951 953 954 957 963 965 967 980 981 983 988
    """.split()
)


def _is_news(record):
    """Return False for the deprecation warning that TFDS itself causes."""
    return "FeatureConnector.dtype` is deprecated" not in record.getMessage()


# TFDS itself reads the deprecated name, so every program would get the warning.
logging.getLogger("absl").addFilter(_is_news)


@dataclasses.dataclass(frozen=True)
class TfdsReader:
    """Reads the examples that a TFDS builder has prepared.

    The examples are read as they are stored, as JPEG or PNG files, because a
    shuffle buffer of decoded images would not fit into memory.

    Args:
        builder: The TFDS builder.
        label: How the label of an example is computed.
        row: The options of the data set.
        maps: How the answers for each pixel are read; None if there are none.
    """

    builder: tfds.core.DatasetBuilder
    label: LabelRule
    row: DatasetRow = DatasetRow()
    maps: MapRule | None = None
    shuffle_buffer = 50_000
    has_exif = False

    @property
    def has_several_labels(self):
        return self.label.has_several

    @property
    def train_split(self):
        return self.row.train_split

    @property
    def eval_split(self):
        return self.row.eval_split

    @property
    def model_class_names(self):
        is_whole = self.row.classes is None
        return None if is_whole else list(self.label.class_names)

    @property
    def logit_columns(self):
        return slice(None) if self.row.classes is None else self.row.classes

    @property
    def class_names(self):
        names, classes = list(self.label.class_names), self.row.classes
        return names if classes is None else [names[i] for i in classes]

    @property
    def image_shape(self):
        shape = self.builder.info.features[self.row.image].shape
        return (*shape[:2], 3) if self.row.pixels else shape

    @property
    def splits(self):
        if self.row.splits is None:
            return self.builder.info.splits
        return {
            name: count_split(name, count_examples(ranges))
            for name, ranges in self.row.splits.items()
        }

    def read(self, ranges):
        if self.row.splits is not None:
            ranges = [
                part
                for name, first, last in ranges
                for part in take_ranges(self.row.splits[name], first, last)
            ]
        instructions = [
            tfds.core.ReadInstruction(name, from_=first, to=last, unit="abs")
            for name, first, last in ranges
        ]
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # TFDS calls a deprecated TensorFlow API.
        try:
            examples = self.builder.as_dataset(
                split=functools.reduce(operator.add, instructions),
                shuffle_files=False,
                decoders=tfds.decode.PartialDecoding(
                    {self.row.image: True, **self.label.features},
                    {
                        name: tfds.decode.SkipDecoding()
                        for name in (self.row.image, *self.label.features)
                        if name == self.row.image
                        or isinstance(
                            self.builder.info.features[name],
                            tfds.features.Image,
                        )
                    },
                ),
                read_config=tfds.ReadConfig(
                    try_autocache=False,
                    interleave_cycle_length=1,
                    add_tfds_id=True,
                ),
            )
        finally:
            logger.setLevel(level)

        def arrange(example):
            label = self.label.compute(example)
            if self.row.classes is not None:
                label = renumber(label, self.row.classes)
            return example[self.row.image], label, example["tfds_id"]

        return examples.map(arrange)

    def fetch(self, stored):
        return stored

    def load_map(self, label):
        """Return the map (H, W) of an example, see `PairFiles.load_map`."""
        if isinstance(label, bytes):
            is_first = self.row.maps[self.maps.kind].is_first_channel
            label = read_numbers(label, is_first_channel=is_first)
        return self.maps.interpret(np.asarray(label))

    def decode(self, encoded):
        feature = self.builder.info.features[self.row.image]
        image = feature.decode_example(encoded)
        if self.row.pixels:
            image = self.row.pixels(image)
        return tf.ensure_shape(image, self.image_shape)


def open_tfds(
    name: str, data_dir: str | None, labels: LabelOptions = AUTO
) -> TfdsReader:
    """Return the TFDS data set `name`, prepared for reading.

    Args:
        name: A key of DATASETS or any name of TFDS.
        data_dir: Folder of the TFDS data sets; None or "" for the default of
            TFDS. (TFDS itself treats "" as the current folder.)
        labels: How the labels are read. Of "one" class, a prediction of any
            class of a list is right.

    Raises:
        tfds.core.DatasetNotFoundError: If TFDS has no data set of this name.
        ValueError: If the data set cannot be prepared, or does not consist of
            labelled images.
    """
    row = find_row(name)
    make = row.builder or functools.partial(tfds.builder, name)
    try:
        builder = make(data_dir=data_dir or None)
        builder.download_and_prepare()
    except (AssertionError, ImportError) as error:
        # TFDS raises these errors if files must be downloaded manually, or if
        # a version or a package is missing.
        raise ValueError(
            f"`dataset` could not be prepared: {error} "
            f"Received: dataset={name!r}"
        ) from None
    row = fit_splits(name, builder, row)
    features = builder.info.features
    if labels.has_maps:
        return open_maps(name, builder, row, labels)
    label = row.label
    if isinstance(label, str):
        has_alternatives = row.has_alternatives or labels.kind == "one"
        label = find_label(features, label, has_alternatives)
    image = features["image"] if "image" in features else None
    if label is None or not isinstance(image, tfds.features.Image):
        raise ValueError(
            f"`dataset` must have the features `image` and `{row.label}`. "
            f"Received: dataset={name!r} with {sorted(features)}"
        )
    return TfdsReader(builder, label, row)


def open_maps(
    name: str,
    builder: tfds.core.DatasetBuilder,
    row: DatasetRow,
    options: LabelOptions,
) -> TfdsReader:
    """Return the reader of images with an answer for each pixel.

    Args:
        name: The name of the data set.
        builder: Its builder.
        row: Its row; one without `maps` has the feature that TFDS knows as an
            image of labels, or one called `depth`.
        options: How the maps are read.

    Raises:
        ValueError: If there is no such feature.
    """
    features, kind = builder.info.features, options.kind
    found = row.maps.get(kind)
    if found is None:
        names = [
            n
            for n in features
            if isinstance(features[n], tfds.features.LabeledImage)
            or (kind == DEPTH and n == "depth")
        ]
        names = [n for n in names if (n == "depth") == (kind == DEPTH)]
        if len(names) == 1:
            known = getattr(features[names[0]], "names", None)
            count = getattr(features[names[0]], "num_classes", 0)
            found = MapFeature(names[0], known or [*map(str, range(count))])
    if found is None or not {row.image, found.name} <= set(features):
        raise ValueError(
            "`dataset` must have images and a map of each that is known here, "
            f"with --objective={kind}. Received: dataset={name!r} with "
            f"{sorted(features)}; write its maps as files for pairs:PATH"
        )
    rule = MapRule(
        kind,
        len(found.class_names) or None,
        options.depth_unit,
        options.max_depth,
        found.classes,
    )
    label = LabelRule(
        found.class_names, {found.name: True}, lambda x: x[found.name]
    )
    row = dataclasses.replace(row, maps={**row.maps, kind: found})
    return TfdsReader(builder, label, row, rule)


def find_row(name: str) -> DatasetRow:
    """Return the options of a data set, those of any configuration too."""
    if name in DATASETS:
        return DATASETS[name]
    row = DATASETS.get(re.split("[/:]", name)[0], DatasetRow())
    return dataclasses.replace(row, builder=None)


def find_label(
    features: tfds.features.FeaturesDict,
    name: str,
    has_alternatives: bool = False,
) -> LabelRule | None:
    """Return the rule that takes a feature as the label.

    Without a feature of the name, a list `labels` or truth values `attributes`
    are several labels. None if there is no feature of classes.
    """
    names = (name, "labels", "attributes") if name == "label" else (name,)
    name = next((n for n in names if n in features), None)
    feature = features[name] if name else None
    if isinstance(feature, tfds.features.FeaturesDict):
        classes = [n for n in feature if feature[n].np_dtype == np.bool_]

        def stack(example):
            marks = [example[name][n] for n in classes]
            return tf.cast(tf.stack(marks), tf.float32)

        wanted = {name: dict.fromkeys(classes, True)}
        return LabelRule(classes, wanted, stack, True) if classes else None
    item = getattr(feature, "feature", feature)
    if not isinstance(item, tfds.features.ClassLabel):
        return None
    if item is feature or has_alternatives:
        return LabelRule(
            item.names, {name: True}, lambda example: example[name]
        )

    def mark(example):
        return to_vector(example[name] + 1, item.num_classes)

    return LabelRule(item.names, {name: True}, mark, True)


def renumber(label: tf.Tensor, classes: Sequence[int]) -> tf.Tensor:
    """Return the position of a class in `classes`, or -1 if it is not there."""
    matches = label[..., None] == tf.constant(classes, label.dtype)
    places = tf.argmax(tf.cast(matches, tf.int32), -1, label.dtype)
    return tf.where(tf.reduce_any(matches, -1), places, -1)


def fit_splits(
    name: str, builder: tfds.core.DatasetBuilder, row: DatasetRow
) -> DatasetRow:
    """Return a row whose splits end where those of TFDS end.

    Versions of TFDS may differ by some images. A warning says so then, because
    results are not those of exactly the same images.
    """
    if row.splits is None:
        return row
    ranges = [part for parts in row.splits.values() for part in parts]
    stated, found = {}, {}
    for split, _, last in ranges:
        stated[split] = max(stated.get(split, 0), last)
        found[split] = builder.info.splits[split].num_examples
    if found == stated:
        return row
    warnings.warn(
        f"{name}: {builder.info.full_name} has {found} images; the benchmark "
        f"was defined on {stated}.",
        stacklevel=2,
    )
    splits = {
        name: [
            (split, first, found[split] if last == stated[split] else last)
            for split, first, last in parts
        ]
        for name, parts in row.splits.items()
    }
    return dataclasses.replace(row, splits=splits)


# The 19 classes that are evaluated, and their numbers in the files.
CITYSCAPES = {
    **{"road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13},
    **{"pole": 17, "traffic light": 19, "traffic sign": 20},
    **{"vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25},
    **{"car": 26, "truck": 27, "bus": 28, "train": 31, "motorcycle": 32},
    "bicycle": 33,
}
DATASETS: dict[str, DatasetRow] = {
    "digits": DatasetRow(Digits),
    "digits_0to4": DatasetRow(Digits0To4),
    "digits_5to9": DatasetRow(Digits5To9),
    "digits_in_photos": DatasetRow(DigitsInPhotos),
    "cifar10": DatasetRow(),
    "cifar100": DatasetRow(),
    "oxford_flowers102": DatasetRow(),
    "oxford_iiit_pet": DatasetRow(
        maps={
            SEGMENT: MapFeature(
                "segmentation_mask",
                ["pet", "background", "border"],
                (-1, 0, 1, 2),
            )
        }
    ),
    # Its masks have the number of the object in the second channel. Their 0
    # is what none of the 150 classes names, which does not count.
    "scene_parse150": DatasetRow(
        eval_split="test",
        maps={
            SEGMENT: MapFeature(
                "annotation",
                [f"class {n}" for n in range(1, 151)],
                (-1, *range(150)),
                is_first_channel=True,
            )
        },
    ),
    "cityscapes": DatasetRow(
        functools.partial(tfds.builder, "cityscapes/semantic_segmentation"),
        image="image_left",
        eval_split="validation",
        maps={
            SEGMENT: MapFeature(
                "segmentation_label",
                list(CITYSCAPES),
                tuple(
                    list(CITYSCAPES.values()).index(n)
                    if n in CITYSCAPES.values()
                    else -1
                    for n in range(34)
                ),
            )
        },
    ),
    "nyu_depth_v2": DatasetRow(maps={DEPTH: MapFeature("depth")}),
    # Its test split has no labels.
    "imagenet2012": DatasetRow(eval_split="validation"),
    "imagenet2012_real": DatasetRow(label="real_label", has_alternatives=True),
    "imagenet_v2": DatasetRow(
        functools.partial(tfds.builder, "imagenet_v2/matched-frequency")
    ),
    # Its builder names all classes of ImageNet.
    "imagenet_a": DatasetRow(classes=IMAGENET_A),
    "imagenet_r": DatasetRow(classes=IMAGENET_R),
    # For example imagenet2012_corrupted/fog_3; its test split has no labels.
    "imagenet2012_corrupted": DatasetRow(eval_split="validation"),
    **{name: task.row for name, task in VTAB_TASKS.items()},
}
