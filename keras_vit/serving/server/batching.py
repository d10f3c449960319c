"""Batching: one inference at a time, for all tasks that wait meanwhile."""

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
        answer: Receives the outputs, or an error.
    """

    model: LoadedModel
    signature: str
    inputs: dict[str, np.ndarray]
    num_pixels: int
    answer: asyncio.Future | None = None

    @property
    def num_rows(self) -> int | None:
        """The number of instances; None if they cannot be told apart."""
        lengths = {x.shape[:1] for x in self.inputs.values()}
        if len(lengths) != 1 or not self.model.has_rows(self.signature):
            return None
        return lengths.pop()[0]

    @property
    def kind(self) -> tuple:
        """A key that is equal for tasks that one inference can compute."""
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
        self._worker = None  # Runs while tasks wait.

    async def compute(self, task: Task) -> dict[str, np.ndarray]:
        """Return the outputs for a task.

        Raises:
            ServingError: If the model refuses the inputs or the time is over.
        """
        task.answer = asyncio.get_running_loop().create_future()
        self._waiting.append(task)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await asyncio.wait_for(task.answer, self._limits.timeout)
        except TimeoutError:
            text = f"No answer within {self._limits.timeout:g} s"
            raise ServingError(text, "DEADLINE_EXCEEDED") from None

    async def _work(self):
        while batch := self._take():
            answers = await asyncio.to_thread(self._attempt, batch)
            for task, answer in zip(batch, answers):
                if task.answer.done():  # Its time is over.
                    continue
                if isinstance(answer, Exception):
                    task.answer.set_exception(answer)
                else:
                    task.answer.set_result(answer)

    def _take(self):
        """Take the first task out of the queue, and all that can join it."""
        waiting = [task for task in self._waiting if not task.answer.done()]
        batch, self._waiting = waiting[:1], []
        for task in waiting[1:]:
            tasks = [*batch, task]
            if (
                task.kind == batch[0].kind
                and sum(x.num_rows for x in tasks)
                <= self._limits.max_batch_size
                and sum(x.num_pixels for x in tasks) <= self._limits.max_pixels
            ):
                batch = tasks
            else:
                self._waiting.append(task)
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
