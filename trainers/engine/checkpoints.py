"""Checkpoints of a training run: written atomically, checked when read."""

import dataclasses
import re
import warnings
from typing import Any

import tensorflow as tf

from keras_vit.errors import first_line
from keras_vit.files import DRAFT
from trainers.engine.engine import Alone, Engine
from trainers.errors import CheckpointError

STATE_INDEX = "state.index"


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
        num_kept: Number of checkpoints to keep.
        engine: The processes, one of which writes.
    """

    folder: str
    state: Any
    num_kept: int = 2
    engine: Engine = dataclasses.field(default_factory=Alone)

    def steps(self) -> list[int]:
        """Return the update numbers of the checkpoints, in ascending order."""
        if not tf.io.gfile.isdir(self.folder):
            return []
        names = tf.io.gfile.listdir(self.folder)
        found = [re.fullmatch(r"step-(\d+)/?", name) for name in names]
        steps = sorted(int(match[1]) for match in found if match)
        if self._is_remote:
            steps = [step for step in steps if self._has_index(step)]
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
        if not self.engine.is_writer:
            return
        whole = self.path(step)
        draft = f"{self.folder}/{DRAFT}{step:08d}"
        if self._is_remote:
            draft = whole
        try:
            _remove(draft)
            tf.io.gfile.makedirs(draft)
            self.state.write(f"{draft}/state")
            if draft != whole:
                _remove(whole)
                tf.io.gfile.rename(draft, whole)
        except (OSError, tf.errors.OpError) as error:
            _remove(draft)
            raise CheckpointError(
                f"The state after update {step} could not be saved in "
                f"{self.folder}: {first_line(error)}"
            ) from None
        for old in self.steps()[: -self.num_kept]:
            _remove(self.path(old))

    def restore(self) -> int | None:
        """Restore the newest readable checkpoint and return its step.

        Returns:
            The number of updates; None if there are no checkpoints.

        Raises:
            CheckpointError: If there are checkpoints, but none can be read.
        """
        faults = []
        for step in reversed(self.steps()):
            try:
                self._read(step)
            except Exception as error:  # Damaged files raise many kinds.
                faults.append(f"{self.path(step)}: {first_line(error)}")
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
                + ". Damaged, or of a model of other sizes: choose another "
                "folder, or remove them to start again."
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
            if name.startswith(DRAFT) or (
                is_step and not tf.io.gfile.exists(f"{path}/{STATE_INDEX}")
            ):
                _remove(path)

    @property
    def _is_remote(self):
        return "://" in self.folder

    def _has_index(self, step):
        return tf.io.gfile.exists(f"{self.path(step)}/{STATE_INDEX}")

    def _read(self, step):
        self.state.read(f"{self.path(step)}/state")


def _remove(path):
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)
