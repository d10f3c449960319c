"""One inference at a time; what waits meanwhile is computed together."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import time

import numpy as np

from keras_vit.serving.server.loading import LoadedModel
from keras_vit.serving.server.metrics import Metrics
from keras_vit.serving.server.refusals import Limits, Refusal


@dataclasses.dataclass(eq=False)
class Task:
    """A request that waits for its inference.

    Args:
        model: The version.
        name: The name of the model.
        signature: The name of the signature.
        inputs: Arrays by name.
        num_pixels: Pixels of the image files among them.
        answer: Receives the outputs.
    """

    model: LoadedModel
    name: str
    signature: str
    inputs: dict[str, np.ndarray]
    num_pixels: int
    answer: asyncio.Future

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
        shapes = ((n, x.shape[1:]) for n, x in sorted(self.inputs.items()))
        return id(self.model), self.signature, *shapes


class Batcher:
    """A queue of tasks, and the thread that computes them.

    Args:
        limits: The sizes of a batch, and the time to wait.
        metrics: Told about each inference.
    """

    def __init__(self, limits: Limits, metrics: Metrics):
        self._limits = limits
        self._metrics = metrics
        self._waiting = collections.deque()
        self._wake = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    async def compute(self, task: Task) -> dict[str, np.ndarray]:
        """Return the outputs for a task.

        Raises:
            Refusal: If the model refuses the inputs or the time is over.
        """
        self._waiting.append(task)
        self._wake.set()
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await task.answer
        except TimeoutError:
            raise Refusal(
                "DEADLINE_EXCEEDED",
                "Timed out waiting for notification: no answer within "
                f"{self._limits.timeout:g} s",
            ) from None

    async def work(self):
        """Compute what waits, until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch = self._take()
            if not batch:
                self._wake.clear()
                continue
            results = await loop.run_in_executor(
                self._thread, self._compute_batch, batch
            )
            for task, result in zip(batch, results):
                if task.answer.done():  # Its time is over.
                    continue
                if isinstance(result, Exception):
                    task.answer.set_exception(result)
                else:
                    task.answer.set_result(result)

    def _take(self) -> list[Task]:
        """Take the first task out of the queue, and those that fit to it."""
        waiting = [task for task in self._waiting if not task.answer.done()]
        self._waiting.clear()
        batch, num_rows, num_pixels = waiting[:1], 0, 0
        if batch and batch[0].num_rows:
            num_rows, num_pixels = batch[0].num_rows, batch[0].num_pixels
        for task in waiting[1:]:
            if (
                num_rows
                and task.kind == batch[0].kind
                and task.num_rows
                and num_rows + task.num_rows <= self._limits.max_batch_size
                and num_pixels + task.num_pixels <= self._limits.max_pixels
            ):
                batch.append(task)
                num_rows += task.num_rows
                num_pixels += task.num_pixels
            else:
                self._waiting.append(task)
        return batch

    def _compute_batch(self, batch: list[Task]) -> list:
        """Return the outputs of each task, or its error."""
        if len(batch) > 1:
            inputs = {
                name: np.concatenate([task.inputs[name] for task in batch])
                for name in batch[0].inputs
            }
            together = dataclasses.replace(batch[0], inputs=inputs)
            outputs = self._attempt(together)
            ends = np.cumsum([task.num_rows for task in batch])
            if not isinstance(outputs, Exception) and all(
                x.shape[:1] == (ends[-1],) for x in outputs.values()
            ):
                parts = {n: np.split(x, ends[:-1]) for n, x in outputs.items()}
                return [
                    {name: part[i] for name, part in parts.items()}
                    for i in range(len(batch))
                ]
        # One wrong request must not spoil the others.
        return [self._attempt(task) for task in batch]

    def _attempt(self, task: Task):
        """Return the outputs of a task, or its error."""
        began = time.perf_counter()
        try:
            outputs = compute_in_parts(task, self._limits.max_batch_size)
        except Exception as error:
            return error
        self._metrics.count_inference(
            task.name, time.perf_counter() - began, task.num_rows or 1
        )
        return outputs


def compute_in_parts(task: Task, max_batch_size: int) -> dict[str, np.ndarray]:
    """Return the outputs of a task, of so many rows at a time."""
    call, signature = task.model.call, task.signature
    if (task.num_rows or 0) <= max_batch_size:
        return call(signature, task.inputs)
    parts = [
        call(
            signature,
            {n: x[i : i + max_batch_size] for n, x in task.inputs.items()},
        )
        for i in range(0, task.num_rows, max_batch_size)
    ]
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
