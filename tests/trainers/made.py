"""Models, images and data sets with known outputs."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from PIL import Image


@dataclasses.dataclass(frozen=True)
class MadeDataset:
    """Images (N, 1, D, 1) and labels (N, C) of weight 0 or more, by split."""

    splits: dict[str, tuple]
    class_names: list[str]
    train_split: str = "train"
    eval_split: str = "test"
    name: str = "made"
    channels: int = 1
    all_class_names: tuple = ()
    has_several_labels: bool = False
    needs_labels: bool = True
    maps = None

    def has_several_classes(self, split):
        return bool(((self.splits[split][1] > 0).sum(1) > 1).any())

    @property
    def model_class_names(self):
        return list(self.all_class_names or self.class_names)

    @property
    def logit_columns(self):
        return [self.model_class_names.index(n) for n in self.class_names]

    @property
    def reader(self):
        return self

    def num_examples(self, split):
        return len(self.splits[split][0])

    def ranges(self, split):
        return [(split, 0, self.num_examples(split))]

    def read(self, ranges):
        [(split, first, last)] = ranges
        numbers = tf.data.Dataset.range(first, last)
        return numbers.map(
            lambda n: (n, n, tf.strings.join([split, tf.strings.as_string(n)]))
        )


def made_batches(dataset, *, image_size, batch_size, with_names=False, **_):
    """Stand for `eval_batches`, with labels and weights as they were made."""
    arrays = dataset.splits[dataset.eval_split]
    if with_names:
        names = [f"{dataset.eval_split}{n}" for n in range(len(arrays[0]))]
        arrays = (*arrays, names)
    assert arrays[0].shape[1:3] == image_size
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def made_split(features, labels, weights=None):
    """Return a split whose images are the features."""
    images = np.asarray(features, "float32")[:, None, :, None]
    weights = np.ones(len(images)) if weights is None else weights
    return images, np.asarray(labels, "float32"), np.float32(weights)


def assert_same_weights(one, other):
    """Compare the weights of two models or layers, to the bit."""
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def save_identity(path, size, head=()):
    """Save a model that returns its pixels, with the layers of a head on."""
    model = keras.Sequential(
        [keras.Input((1, size, 1)), keras.layers.Flatten(), *head]
    )
    model.save(path)
    return str(path)


def waves(seed, size=(120, 160)):
    """Return a picture of a few smooth waves, (H, W, 3)."""
    draws = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]] / np.max(size)
    total = sum(
        draws.normal() * np.cos(a * x + b * y + c)
        for a, b, c in draws.uniform(-20, 20, (12, 3))
    )
    grey = 127 + 60 * total / np.abs(total).max()
    return np.repeat(grey[..., None], 3, -1).astype("uint8")


def write_photos(folder, places, size=(9, 9), draw=None):
    """Write an image for each of the places, such as train/cat.

    It is `draw` of its number, or noise.
    """
    draws = np.random.default_rng(0)
    for index, place in enumerate(places):
        path = folder / place / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = draws.integers(0, 256, (*size, 3), "uint8")
        pixels = draw(index) if draw else noise
        Image.fromarray(pixels).save(path)
    return folder


def write_pairs(folder, kind="segment", count=10, size=(12, 16), seed=0):
    """Write images with a bright square, and its map.

    The class of a square is 1 or 2, by its colour, and that of the rest is 0;
    its depth is 0.5 to 2 m, and that of the rest 4 m. A corner is unknown.
    """
    draws = np.random.default_rng(seed)
    maps = {"segment": "masks", "depth": "depths"}[kind]
    for name in ("images", maps):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        pixels = draws.integers(0, 60, (*size, 3))
        y, x = (draws.integers(n - 6) for n in size)
        square = np.s_[y : y + 6, x : x + 6]
        label = 1 + index % 2
        pixels[square] += np.array([[150, 0, 0], [0, 150, 0]])[label - 1]
        if kind == "segment":
            found = np.zeros(size, "uint8")
            found[square], found[:2, :2] = label, 255
        else:
            found = np.full(size, 4000, "uint16")
            found[square], found[:2, :2] = draws.integers(500, 2000), 0
        Image.fromarray(pixels.astype("uint8")).save(
            folder / "images" / f"{index}.png"
        )
        Image.fromarray(found).save(folder / maps / f"{index}.png")
    return folder


def write_records(path, images, labels, **others):
    """Write encoded images, each with one or several labels, as TFRecord."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(images, labels):
            features = {
                "image/encoded": {"bytes_list": {"value": [image]}},
                "image/class/label": {
                    "int64_list": {"value": np.atleast_1d(label)}
                },
                **others,
            }
            feature = {
                name: tf.train.Feature(**value)
                for name, value in features.items()
                if value
            }
            example = tf.train.Example(features={"feature": feature})
            writer.write(example.SerializeToString())
