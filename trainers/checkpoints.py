"""Checkpoints of a training run: whole or not there, checked when read."""

import dataclasses
import re
import warnings

import tensorflow as tf

DRAFT = ".draft-"


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The states of a run in a folder, the newest few of them.

    Each is a folder `step-00000120` that is written under another name first
    and renamed when it is whole: a process that is killed while it saves
    leaves the older ones as they were.

    Args:
        folder: Where they are; made when the first is saved.
        state: What is saved: all that changes in training.
        num_kept: How many of the newest are kept.
        is_writer: Whether this process writes. One of several does.
    """

    folder: str
    state: tf.train.Checkpoint
    num_kept: int = 2
    is_writer: bool = True

    def steps(self) -> list[int]:
        """Return the numbers of updates after which a state was saved."""
        if not tf.io.gfile.isdir(self.folder):
            return []
        names = tf.io.gfile.listdir(self.folder)
        found = [re.fullmatch(r"step-(\d+)/?", name) for name in names]
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> str:
        """Return the folder of the state after `step` updates."""
        return f"{self.folder}/step-{step:08d}"

    def save(self, step: int):
        """Save the state after `step` updates, then drop the oldest.

        Raises:
            CheckpointError: If it cannot be written. Older ones are still
                there.
        """
        if not self.is_writer:
            return
        draft = f"{self.folder}/{DRAFT}{step:08d}"
        try:
            _remove(draft)
            tf.io.gfile.makedirs(draft)
            self.state.write(f"{draft}/state")
            _remove(self.path(step))
            tf.io.gfile.rename(draft, self.path(step))
        except (OSError, tf.errors.OpError) as error:
            _remove(draft)
            raise CheckpointError(
                f"The state after update {step} could not be saved in "
                f"{self.folder}: {_first_line(error)}"
            ) from None
        for old in self.steps()[: -self.num_kept]:
            _remove(self.path(old))

    def restore(self) -> int | None:
        """Restore the newest state that is whole; return its step.

        Returns:
            None if there is no state at all.

        Raises:
            CheckpointError: If there are states and none can be read.
        """
        faults = []
        for step in reversed(self.steps()):
            try:
                self._read(step)
            except Exception as error:  # Of many kinds, for damaged files.
                faults.append(f"{self.path(step)}: {_first_line(error)}")
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
                "No checkpoint of the run can be read: " + "; ".join(faults)
            )
        return None

    def remove_drafts(self):
        """Remove what a process that was killed while saving has left."""
        if not self.is_writer or not tf.io.gfile.isdir(self.folder):
            return
        for name in tf.io.gfile.listdir(self.folder):
            if name.startswith(DRAFT):
                _remove(f"{self.folder}/{name}")

    def _read(self, step):
        # TensorFlow compares the checksum of each array it reads.
        status = self.state.read(f"{self.path(step)}/state")
        status.assert_consumed()


class CheckpointError(RuntimeError):
    """A state cannot be written, or none can be read."""


def _remove(path):
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)


def _first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
