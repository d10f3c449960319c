"""Errors that end a training before its last update."""


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or NaN."""


class Interrupted(RuntimeError):
    """The training was asked to stop; its state is saved."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or none can be read."""
