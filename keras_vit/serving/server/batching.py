"""One inference at a time; what waits meanwhile is computed together."""

import asyncio
import dataclasses

import numpy as np

from keras_vit.serving.errors import ServingError
from keras_vit.serving.server.limits import Limits
from keras_vit.serving.server.loaded_model import LoadedModel


@dataclasses.dataclass(eq=False)
class Task:
    """An inference that a request waits for.

    Args:
        model: The version.
        signature: The name of the signature.
        inputs: Arrays by name.
        num_pixels: Pixels of the image files among them.
        answer: The outputs, or an error, once it is computed.
    """

    model: LoadedModel
    signature: str
    inputs: dict[str, np.ndarray]
    num_pixels: int
    answer: dict[str, np.ndarray] | Exception | None = None

    @property
    def num_rows(self) -> int | None:
        """The number of instances; None if they cannot be told apart."""
        lengths = {x.shape[:1] for x in self.inputs.values()}
        if len(lengths) != 1 or not self.model.has_rows(self.signature):
            return None
        return lengths.pop()[0]

    @property
    def kind(self) -> tuple:
        """Equal for tasks that one inference can compute."""
        if self.num_rows is None:
            return (id(self),)
        shapes = ((n, x.shape[1:]) for n, x in sorted(self.inputs.items()))
        return id(self.model), self.signature, *shapes


class Batcher:
    """The tasks that wait for an inference.

    Args:
        limits: The sizes of a batch, and the time to wait.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._waiting = []
        self._lock = asyncio.Lock()

    async def compute(self, task: Task) -> dict[str, np.ndarray]:
        """Return the outputs for a task.

        Raises:
            ServingError: If the model refuses the inputs or the time is over.
        """
        self._waiting.append(task)
        # An inference cannot be cancelled, and may be for others as well.
        turn = asyncio.create_task(self._take_turn(task))
        try:
            async with asyncio.timeout(self._limits.timeout):
                await asyncio.shield(turn)
        except TimeoutError:
            if task in self._waiting:
                self._waiting.remove(task)
            text = f"No answer within {self._limits.timeout:g} s"
            raise ServingError(text, "DEADLINE_EXCEEDED") from None
        if isinstance(task.answer, Exception):
            raise task.answer
        return task.answer

    async def _take_turn(self, task):
        async with self._lock:
            if task in self._waiting:  # Else an earlier turn computed it.
                batch = self._take(task)
                answers = await asyncio.to_thread(self._attempt, batch)
                for each, answer in zip(batch, answers):
                    each.answer = answer

    def _take(self, task):
        """Take a task out of the queue, and those that fit to it."""
        self._waiting.remove(task)
        batch, num_rows, num_pixels = [task], task.num_rows, task.num_pixels
        for other in self._waiting[:]:
            if (
                other.kind == task.kind
                and num_rows + other.num_rows <= self._limits.max_batch_size
                and num_pixels + other.num_pixels <= self._limits.max_pixels
            ):
                self._waiting.remove(other)
                batch.append(other)
                num_rows += other.num_rows
                num_pixels += other.num_pixels
        return batch

    def _attempt(self, batch):
        """Return the outputs of each task, or its error."""
        try:
            return self._compute(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            # One wrong request must not spoil the others.
            return [self._attempt([task])[0] for task in batch]

    def _compute(self, batch):
        """Return the outputs of each task, computed together."""
        first, size = batch[0], self._limits.max_batch_size
        if len(batch) == 1 and (first.num_rows or 0) <= size:
            return [first.model.call(first.signature, first.inputs)]
        inputs = {
            name: np.concatenate([task.inputs[name] for task in batch])
            for name in first.inputs
        }
        ends = np.cumsum([task.num_rows for task in batch])
        parts = [
            first.model.call(
                first.signature,
                {name: x[start : start + size] for name, x in inputs.items()},
            )
            for start in range(0, ends[-1], size)
        ]
        answers = [{} for _ in batch]
        for name in parts[0]:
            output = np.concatenate([part[name] for part in parts])
            if len(output) != ends[-1]:
                raise ValueError(f"{name} has {len(output)} rows of {ends[-1]}")
            for answer, rows in zip(answers, np.split(output, ends[:-1])):
                answer[name] = rows
        return answers
