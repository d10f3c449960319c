"""The flags that say how the processes of a training find each other."""

from absl import flags

from trainers.distribute.cluster import WorkerConfig


def worker_config_from_flags(
    values: flags.FlagValues = flags.FLAGS,
) -> WorkerConfig:
    """Return how this process finds the other workers."""
    return WorkerConfig(
        values.workers, values.worker_index, values.tpu, values.start_timeout
    )
