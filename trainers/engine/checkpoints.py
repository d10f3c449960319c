"""Checkpoints of a training run: written atomically, checked when read."""

import dataclasses
import re
import warnings
import zlib
from typing import Any

import tensorflow as tf

from keras_vit.errors import first_line
from keras_vit.files import DRAFT
from trainers.engine.engine import Engine


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or none can be read."""


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoints of a run, in a folder.

    Each checkpoint is a folder such as `step-00000120`. It is written under a
    temporary name and renamed when it is complete, so a process that is killed
    while saving leaves the older checkpoints intact. A bucket cannot rename
    folders: there, a checkpoint is complete when its index file exists, which
    TensorFlow writes last.

    Args:
        folder: Path or gs:// address of the folder; the first save creates it.
        state: Everything that changes in training; see `Engine.state`.
        engine: The processes, one of which writes.
        num_kept: Number of checkpoints to keep.
    """

    folder: str
    state: Any
    engine: Engine
    num_kept: int = 2

    def steps(self) -> list[int]:
        """Return the update numbers of the checkpoints, in ascending order."""
        if not tf.io.gfile.isdir(self.folder):
            return []
        names = tf.io.gfile.listdir(self.folder)
        found = [re.fullmatch(r"step-(\d+)/?", name) for name in names]
        steps = sorted(int(match[1]) for match in found if match)
        if self._is_remote:
            steps = [s for s in steps if _has_index(self.path(s))]
        return steps

    def path(self, step: int) -> str:
        """Return the folder of the checkpoint after `step` updates."""
        return f"{self.folder}/step-{step:08d}"

    def save(self, step: int):
        """Save the state after `step` updates, then remove the oldest ones.

        Raises:
            CheckpointError: If the state cannot be written. The older
                checkpoints are kept.
        """
        is_writer, saves_together = (
            self.engine.is_writer,
            self.engine.saves_together,
        )
        whole = self.path(step)
        draft = f"{self.folder}/{DRAFT}{step:08d}"
        if self._is_remote:
            draft = whole

        def begin():
            _remove(draft)
            tf.io.gfile.makedirs(draft)

        def write():
            self.state.write(f"{draft}/state")

        def end():
            if saves_together:
                self.state.complete(f"{draft}/state")
            if draft != whole:
                _remove(whole)
                tf.io.gfile.rename(draft, whole)

        steps = ((begin, False), (write, saves_together), (end, False))
        for action, is_for_all in steps:
            fault = None
            if is_writer or is_for_all:
                fault = _try(action)
            # All have done it before one does the next, or all stop.
            if self.engine.agree(bool(fault)):
                fault = fault or "another worker could not write its part"
            if fault:
                if is_writer:
                    _remove(draft)
                raise CheckpointError(
                    f"The state after update {step} could not be saved in "
                    f"{self.folder}: {fault}"
                )
        if is_writer:
            for old in self.steps()[: -self.num_kept]:
                _remove(self.path(old))

    def restore(self) -> int | None:
        """Restore the newest readable checkpoint and return its step.

        Returns:
            The number of updates; None if there are no checkpoints.

        Raises:
            CheckpointError: If there are checkpoints, but none can be read,
                or the processes find different ones.
        """
        faults = []
        steps = self.steps()
        found = zlib.crc32(repr(steps).encode()) % 2**24
        if self.engine.saves_together and not self.engine.is_common(found):
            raise CheckpointError(
                "The workers found different checkpoints; they must share the "
                f"folder of the run. Here: those after the updates {steps} in "
                f"{self.folder}"
            )
        for step in reversed(steps):
            # Damaged files raise many kinds.
            path = f"{self.path(step)}/state"
            fault = _try(lambda path=path: self.state.read(path), Exception)
            if self.engine.saves_together and self.engine.agree(bool(fault)):
                fault = fault or "another worker cannot read it"
            if fault:
                faults.append(f"{self.path(step)}: {fault}")
                continue
            if faults:
                warnings.warn(
                    "A checkpoint cannot be read, the one before it is used: "
                    + "; ".join(faults),
                    stacklevel=2,
                )
            return step
        if faults:
            raise CheckpointError(
                "No checkpoint of the run can be read: "
                + "; ".join(faults)
                + ". Damaged, or of a recipe with another model, optimizer or "
                "keep_best: choose another folder, or remove them to start "
                "again."
            )
        return None

    def remove_drafts(self):
        """Remove the incomplete checkpoints of processes that were killed."""
        is_there = tf.io.gfile.isdir(self.folder)
        if not self.engine.is_writer or not is_there:
            return
        for name in tf.io.gfile.listdir(self.folder):
            path = f"{self.folder}/{name}".rstrip("/")
            is_step = self._is_remote and name.startswith("step-")
            if name.startswith(DRAFT) or (is_step and not _has_index(path)):
                _remove(path)

    @property
    def _is_remote(self):
        return "://" in self.folder


def _try(action, kinds=(OSError, tf.errors.OpError)):
    """Return the first line of the error that an action raises, or ""."""
    try:
        action()
    except kinds as error:
        return first_line(error) or type(error).__name__
    return ""


def _has_index(path):
    return tf.io.gfile.exists(f"{path}/state.index")


def _remove(path):
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)
