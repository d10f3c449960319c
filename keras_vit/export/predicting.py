"""Running a model or its exports on images, in batches."""

from collections.abc import Callable, Iterator

import keras
import numpy as np

BATCH_SIZE = 32


def expected_outputs(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return the predictions of the Keras model, in float32.

    An export must give the same outputs.
    """
    outputs = model.predict(images, batch_size=BATCH_SIZE, verbose=0)
    return np.asarray(outputs, "float32")


def run_in_batches(run: Callable, inputs: np.ndarray):
    """Return the outputs of `run` for all inputs.

    Args:
        run: Takes a batch; returns an array or a dict of arrays.
        inputs: Images or other inputs of `run`, (B, ...).
    """
    size = min(BATCH_SIZE, len(inputs))
    parts = [run(batch) for batch in batches(inputs, size)]
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays)[: len(inputs)], *parts
    )


def batches(inputs: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield full batches; the last input is repeated to fill the last one."""
    for start in range(0, len(inputs), batch_size):
        indices = range(start, start + batch_size)
        yield np.take(inputs, indices, 0, mode="clip")


def make_noise(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Return uniform noise: floats in [-1, 1], or the full range of integers.

    Raises:
        ValueError: If `dtype` is not a type of numbers.
    """
    random = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    if dtype.kind not in "iu":
        raise ValueError(
            f"`dtype` must be a type of numbers. Received: dtype={dtype}"
        )
    bounds = np.iinfo(dtype)
    return random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
