"""What a model and its exports answer to images."""

from collections.abc import Callable, Iterator

import keras
import numpy as np

BATCH_SIZE = 32


def expected_answers(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return what `model` answers, as float32."""
    answers = model.predict(images, batch_size=BATCH_SIZE, verbose=0)
    return np.asarray(answers, "float32")


def answer_in_batches(
    answer: Callable, questions: np.ndarray, batch_size: int | None = None
):
    """Return what `answer` makes of all questions, asked some at a time.

    Args:
        answer: Takes a batch, returns an array or a dict of arrays.
        questions: Images, or what else is asked.
        batch_size: The one that `answer` takes; None if it takes any.
    """
    batch_size = batch_size or min(BATCH_SIZE, len(questions))
    parts = [answer(batch) for batch in batches(questions, batch_size)]
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays)[: len(questions)], *parts
    )


def batches(questions: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield batches, the last question again to fill the last one."""
    for start in range(0, len(questions), batch_size):
        indices = range(start, start + batch_size)
        yield np.take(questions, indices, 0, mode="clip")
