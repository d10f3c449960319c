"""The check that an exported model answers as the Keras model does."""

import os
from typing import NamedTuple

import keras
import numpy as np


class Agreement(NamedTuple):
    """How an export compares with the model it came from.

    Args:
        path: The file or folder that was written.
        num_images: Images that both were asked about.
        max_difference: Largest absolute difference of an output.
        top1_agreement: Share of images given the same class by both.
        num_bytes: Size on disk.
    """

    path: str
    num_images: int
    max_difference: float
    top1_agreement: float
    num_bytes: int

    def __str__(self):
        return (
            f"{self.path}: {self.num_bytes / 2**20:.2f} MiB, largest "
            f"difference to Keras {self.max_difference:.1e}, same class for "
            f"{self.top1_agreement:.2%} of {self.num_images} images"
        )


def compare(
    path: str,
    expected: np.ndarray,
    answers: np.ndarray,
    tolerance: float,
    num_bytes: int,
) -> Agreement:
    """Return how far `answers` are from `expected`.

    Args:
        path: Where the export will stand, for the report.
        expected: What the Keras model answers, (B, C).
        answers: What the export answers, (B, C).
        tolerance: Largest difference allowed.
        num_bytes: Size of the export.

    Raises:
        RuntimeError: If the answers differ by more than `tolerance`, or are
            not numbers.
    """
    difference = float(np.max(np.abs(expected - answers)))
    if not difference <= tolerance:  # Also true of nan.
        raise RuntimeError(
            f"The export answers differently from the Keras model: by "
            f"{difference:.1e}, allowed is {tolerance:.0e}. Nothing was "
            f"written to {path}."
        )
    same = np.argmax(expected, -1) == np.argmax(answers, -1)
    return Agreement(
        path, len(expected), difference, float(np.mean(same)), num_bytes
    )


def check_exportable(model: keras.Model, path: str, images: np.ndarray):
    """Raise a ValueError unless `model` can be exported and compared."""
    if not len(images):
        raise ValueError(
            "`images` must hold an image or more to compare the answers on. "
            "Received: none"
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exporting needs the TensorFlow backend of Keras. Received: "
            f"KERAS_BACKEND={keras.backend.backend()!r}"
        )
    if None in model.input_shape[1:]:
        raise ValueError(
            "`model` must have a fixed image size; call its "
            "`with_image_size` first. Received: "
            f"input_shape={model.input_shape}"
        )
    if os.path.exists(path):
        raise ValueError(
            "`path` must not exist yet; nothing is overwritten. "
            f"Received: path={path!r}"
        )


def output_name(model: keras.Model) -> str:
    """Return what the output of `model` is, as clients should call it."""
    activation = getattr(model.layers[-1], "activation", None)
    name = getattr(activation, "__name__", "features")
    names = {
        "linear": "logits",
        "softmax": "probabilities",
        "sigmoid": "probabilities",
    }
    # A model that ends below the head, such as in its tanh layer, answers
    # with features.
    is_head = model.layers[-1].name != "pre_logits"
    return names.get(name, "features") if is_head else "features"


def size_on_disk(path: str) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )
