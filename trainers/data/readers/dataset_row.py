"""DatasetRow: how a data set of tensorflow-datasets (TFDS) is read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.data.splits import Range


@dataclasses.dataclass(frozen=True)
class LabelRule:
    """A label that is computed from features of an example.

    Args:
        class_names: Names of the classes.
        features: The features to read, as `tfds.decode.PartialDecoding` wants
            them.
        compute: Takes the features of an example by name, and returns its
            label; see `trainers.data.datasets.ExampleReader`.
        has_several: Whether the label is a vector of several labels.
    """

    class_names: Sequence[str]
    features: Mapping
    compute: Callable[[Mapping], tf.Tensor]
    has_several: bool = False


@dataclasses.dataclass(frozen=True)
class MapFeature:
    """The feature with an answer for each pixel.

    Args:
        name: Its name.
        class_names: Names of the classes; none of depths.
        classes: See `trainers.data.maps.MapRule`.
        is_first_channel: Whether only the first channel of the image counts.
    """

    name: str
    class_names: Sequence[str] = ()
    classes: Sequence[int] | None = None
    is_first_channel: bool = False


@dataclasses.dataclass(frozen=True)
class DatasetRow:
    """Options to open a TFDS data set that differ from the defaults.

    Args:
        builder: Takes data_dir and returns the TFDS builder; None for the
            builder that TFDS registers under the name.
        label: The feature with the label, a class or a list of classes; or a
            rule that computes it.
        has_alternatives: Whether a prediction of any class of the list is
            right, as in ImageNet-ReaL. Otherwise they are several labels.
        classes: Indices, in ascending order, of the classes that the data set
            has of those that the feature names. A model of all of them is
            evaluated on these. None for all.
        pixels: Changes a decoded image into one with three channels; None
            leaves it as it is.
        train_split: Split to train on; None for `train`, if it exists.
        eval_split: Split to evaluate on; None for the default one.
        splits: The ranges of examples of each split; None for the splits of
            TFDS.
        image: The feature with the image, of data sets that are read for
            their maps.
        maps: The features with an answer for each pixel, by its kind.
    """

    builder: Callable[..., tfds.core.DatasetBuilder] | None = None
    label: str | LabelRule = "label"
    has_alternatives: bool = False
    classes: Sequence[int] | None = None
    pixels: Callable[[tf.Tensor], tf.Tensor] | None = None
    train_split: str | None = None
    eval_split: str | None = None
    splits: Mapping[str, Sequence[Range]] | None = None
    image: str = "image"
    maps: Mapping[str, MapFeature] = dataclasses.field(default_factory=dict)
