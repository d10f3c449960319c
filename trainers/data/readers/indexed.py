"""A reader of images that Python code returns by number."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing.decoding import decode_image
from trainers.data.readers.image_files import find_twice
from trainers.data.splits import count_split


@dataclasses.dataclass(frozen=True)
class IndexedImages:
    """Reads images of one's own, such as those of a list or a database.

    For the DATASETS of a plug-in. The same number must always give the same
    image. With --data_service, the machines that prepare the images cannot
    call this code.

    Args:
        class_names: Names of the classes.
        labels: Of each split, the number of the class of each image, (N,); or
            for several labels 1, 0 or NaN where unknown, (N, classes).
        load: Takes a split and a number from 0; returns an image: the bytes of
            an image file, or pixels (H, W, channels) from 0 to 255, uint8.
        channels: 3 for colours, 1 for grey levels.

    Raises:
        ValueError: If two classes have one name, or labels are not those of
            the classes.
    """

    class_names: Sequence[str]
    labels: Mapping[str, Sequence]
    load: Callable[[str, int], bytes | np.ndarray]
    channels: int = 3
    train_split = eval_split = None
    shuffle_buffer = 250_000  # It holds names of images.

    def __post_init__(self):
        if twice := find_twice(self.class_names):
            raise ValueError(
                "`class_names` must differ. Received: "
                f"class_names={self.class_names!r} with {twice!r} twice"
            )
        arrays = {name: np.asarray(rows) for name, rows in self.labels.items()}
        count = len(self.class_names)
        for split, rows in arrays.items():
            if rows.ndim == 2 and rows.shape[1] == count:
                is_right = np.isin(rows, (0, 1)) | np.isnan(rows)
            elif rows.ndim == 1 and rows.dtype.kind in "iu":
                is_right = (rows >= 0) & (rows < count)
            else:
                is_right = np.zeros(1, bool)
            if not np.all(is_right):
                raise ValueError(
                    f"`labels` must be whole numbers from 0 to {count - 1}, or "
                    f"rows of {count} numbers 0, 1 or NaN. Received: "
                    f"labels[{split!r}] of shape {rows.shape} and type "
                    f"{rows.dtype}"
                )
        if len({rows.ndim for rows in arrays.values()}) != 1:
            raise ValueError("`labels` must be of one kind in all splits.")
        object.__setattr__(self, "labels", arrays)

    @property
    def image_shape(self):
        return None, None, self.channels

    @property
    def has_several_labels(self):
        return any(rows.ndim == 2 for rows in self.labels.values())

    @property
    def has_exif(self):
        return self.channels == 3  # For others, only the kinds of TensorFlow.

    @property
    def splits(self):
        return {n: count_split(n, len(rows)) for n, rows in self.labels.items()}

    def read(self, ranges):
        names = [
            f"{split}:{index}"
            for split, first, last in ranges
            for index in range(first, last)
        ]
        parts = [self.labels[split][a:b] for split, a, b in ranges]
        kind = np.float32 if self.has_several_labels else np.int64
        labels = np.concatenate(parts).astype(kind)
        data = tf.data.Dataset.from_tensor_slices((names, labels))
        return data.map(lambda name, label: (name, label, name))

    def fetch(self, stored):
        return tf.ensure_shape(
            tf.numpy_function(self._load, [stored], tf.string), ()
        )

    def _load(self, stored):
        name = np.asarray(stored).item().decode()  # In graphs, it is bytes.
        split, _, index = name.rpartition(":")
        image = self.load(split, int(index))
        if isinstance(image, bytes):
            return image
        image = np.asarray(image)
        if image.dtype != np.uint8:
            raise ValueError(
                "`load` must return bytes or pixels of the type uint8. "
                f"Received: an array of the type {image.dtype}"
            )
        return tf.io.encode_png(image, compression=0).numpy()

    def decode(self, encoded):
        return decode_image(encoded, self.channels)
