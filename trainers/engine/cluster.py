"""WorkerConfig: how the processes that train together find each other."""

import dataclasses
import json
import os

import tensorflow as tf

from trainers.engine.rendezvous import is_address

resolvers = tf.distribute.cluster_resolver


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """How this process finds the other workers.

    Args:
        workers: Addresses "host:port,host:port" of all processes, in the same
            order on each; None to read TF_CONFIG or the variables of Slurm.
        worker_index: Index of this process in `workers`, from 0.
        tpu: Name or address of the TPU; None for that of this machine.
        start_timeout: Seconds to wait at the start for the other processes and
            for the data service.
    """

    workers: str | None = None
    worker_index: int | None = None
    tpu: str | None = None
    start_timeout: float = 600.0


ALONE = WorkerConfig()


def find_cluster(config: WorkerConfig) -> resolvers.ClusterResolver:
    """Return the cluster from `workers`, TF_CONFIG or Slurm.

    Raises:
        ValueError: If none of the three is set, or one is incomplete.
    """
    if config.workers:
        return _from_addresses(config)
    if os.environ.get("TF_CONFIG"):
        return _from_tf_config(os.environ["TF_CONFIG"])
    if "SLURM_PROCID" in os.environ:
        return _from_slurm()
    raise ValueError(
        "`strategy='multi_worker'` must know the other processes: give "
        "`workers` and `worker_index`, set TF_CONFIG, or start it with Slurm's "
        "srun. None of them was found."
    )


def find_addresses(config: WorkerConfig) -> tuple[list[str], int] | None:
    """Return the addresses of all processes, and the number of this one.

    None if none of `workers`, TF_CONFIG and Slurm names several.

    Raises:
        ValueError: See `find_cluster`.
    """
    named = config.workers or os.environ.get("TF_CONFIG")
    if not named and "SLURM_PROCID" not in os.environ:
        return None
    return addresses_of(find_cluster(config))


def addresses_of(cluster: resolvers.ClusterResolver) -> tuple[list[str], int]:
    """Return the addresses of the processes that train, and the own number."""
    jobs = cluster.cluster_spec().as_dict()
    addresses = [*jobs.get("chief", []), *jobs.get("worker", [])]
    own = jobs[cluster.task_type][cluster.task_id]
    return addresses, addresses.index(own)


def refuse_workers(config: WorkerConfig, strategy: str, fitting: list[str]):
    """Raise the ValueError of a strategy for one process.

    Args:
        config: How the processes find each other.
        strategy: The strategy.
        fitting: Those for several processes.
    """
    raise ValueError(
        f"`workers` needs `strategy={' or '.join(map(repr, fitting))}`. "
        f"Received: strategy={strategy!r}, workers={config.workers!r}"
    )


def _from_addresses(config):
    addresses = [part.strip() for part in config.workers.split(",")]
    if not all(is_address(part) for part in addresses):
        raise ValueError(
            "`workers` must be 'host:port,host:port'. "
            f"Received: workers={config.workers!r}"
        )
    if len(set(addresses)) < len(addresses):
        raise ValueError(
            "`workers` must be different addresses. "
            f"Received: workers={config.workers!r}"
        )
    index = config.worker_index
    if index is None or not 0 <= index < len(addresses):
        raise ValueError(
            f"`worker_index` must be in 0..{len(addresses) - 1}, the number of "
            f"this process in `workers`. Received: worker_index={index}"
        )
    return resolvers.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )


def _from_tf_config(text):
    try:
        config = json.loads(text)
        workers = config["cluster"].get("worker", [])
        kind, index = config["task"]["type"], int(config["task"]["index"])
        if kind not in ("chief", "worker"):
            raise ValueError(f"no task of type {kind!r} trains here")
        if not 0 <= index < len(config["cluster"][kind]):
            raise ValueError(f"there is no {kind} {index}")
        if not workers:
            raise ValueError("there are no workers")
        everyone = [*config["cluster"].get("chief", []), *workers]
        for address in everyone:
            if not is_address(address):
                raise ValueError(f"{address!r} is not host:port")
        if len(set(everyone)) < len(everyone):
            raise ValueError("an address is there twice")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            'TF_CONFIG must be of the form {"cluster": {"worker": '
            '["host:port", ...]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={text!r} ({type(error).__name__}: {error})"
        ) from None
    return resolvers.TFConfigClusterResolver()


def _from_slurm():
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    # Without a GPU, the resolver would divide by the number of GPUs, 0.
    gpus = {} if has_gpus else {"gpus_per_node": 1024, "gpus_per_task": 1}
    try:
        resolver = resolvers.SlurmClusterResolver(
            port_base=_slurm_port(), auto_set_gpu=has_gpus, **gpus
        )
        resolver.cluster_spec()  # Determines the task of this process.
    except (RuntimeError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            "Slurm did not name the processes; start every one with srun "
            "inside the job, or give `workers` and `worker_index`. "
            f"Received: {type(error).__name__}: {error}"
        ) from None
    return resolver


def _slurm_port():
    """Return the first port of a job; jobs on one node do not share ports.

    Each of 1024 jobs has 16 ports. All are below 32768, from where Linux
    assigns ports itself.
    """
    return 8192 + 16 * (int(os.environ.get("SLURM_JOB_ID", 0)) % 1024)
