"""The flags that say how the processes of a training find each other."""

from absl import flags

from trainers.distribute.cluster import WorkerConfig


def define_worker_flags():
    """Define the flags of a WorkerConfig."""
    flags.DEFINE_string(
        "workers",
        None,
        "For --strategy=multi_worker: host:port of all processes, with commas. "
        "Default: from TF_CONFIG or Slurm.",
    )
    flags.DEFINE_integer(
        "worker_index", None, "Index of this process in --workers, from 0."
    )
    flags.DEFINE_float(
        "start_timeout",
        WorkerConfig.start_timeout,
        "Seconds to wait at the start for other processes and the data "
        "service.",
        lower_bound=0.0,
    )
    flags.DEFINE_string(
        "tpu",
        None,
        "For --strategy=tpu: name or address of the TPU, if not local.",
    )


def worker_config_from_flags(
    values: flags.FlagValues = flags.FLAGS,
) -> WorkerConfig:
    """Return how this process finds the other workers."""
    return WorkerConfig(
        values.workers, values.worker_index, values.tpu, values.start_timeout
    )
