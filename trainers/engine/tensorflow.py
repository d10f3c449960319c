"""The TensorFlow engine: `tf.distribute` runs an update on each replica.

`update.py` says what an update is. The gradients of the replicas are summed
once, after all parts of the batch. Masks of dropout depend on the seed, the
update, the replica and the part. Batch normalization uses the statistics of a
part of a replica; its moving averages are means over replicas and parts.
"""

import dataclasses
import functools
import signal
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.client import device_lib

from keras_vit.errors import first_line
from keras_vit.tables import pick
from trainers.engine.cluster import (
    ALONE,
    WorkerConfig,
    addresses_of,
    find_cluster,
    refuse_workers,
)
from trainers.engine.engine import Engine, Share
from trainers.engine.pieces import (
    OF_THE_OTHER_ENGINE,
    Pieces,
    are_pieces,
    check_arrays,
    find_arrays,
    name_variables,
)
from trainers.engine.rendezvous import kill_after, wait_for_workers
from trainers.engine.update import Update

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)


class TensorFlowEngine(Engine):
    """Trains on the replicas of a strategy."""

    lost = LOST

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self.devices = tuple(strategy.extended.worker_devices)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            addresses, self.index = addresses_of(resolver)
            self.addresses = tuple(addresses)
        self._is_cpu = all("CPU:" in name.upper() for name in self.devices)
        self.num_processors = (
            self.num_processes if self._is_cpu else self.num_replicas
        )

    def scope(self):
        return self.strategy.scope()

    def batches(self, make):
        def make_share(context):
            share = Share(
                num_replicas=context.num_replicas_in_sync,
                worker=context.input_pipeline_id,
                num_workers=context.num_input_pipelines,
            )
            return make(share)

        if self._is_cpu and self.num_replicas == 1:
            # Nothing has to be copied to a device. Iterators of a strategy
            # take tenths of a second to begin and to end.
            return make(Share())
        return self.strategy.distribute_datasets_from_function(make_share)

    def compile(self, update):
        return TensorFlowUpdate(update, self.strategy)

    def state(self, model, optimizer, loss_scale, numbers):
        return TensorFlowState(model, optimizer, loss_scale, numbers)

    def gather(self, row):
        if self.num_processes == 1:
            return row[None]
        table = np.zeros((self.num_processes, len(row)), row.dtype)
        table[self.index] = row
        per_replica = self.strategy.run(lambda: tf.constant(table))
        total = self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, per_replica, axis=None
        ).numpy()
        # What is in the table may end a process. It must not, before all others
        # have the table.
        self.part_from_all()
        copies = self.num_replicas // self.num_processes
        return (total / copies).astype(row.dtype)

    def memory_limits(self):
        kind = tf.DeviceSpec.from_string(self.devices[0]).device_type
        if kind == "CPU":
            return []
        found = device_lib.list_local_devices()
        return [x.memory_limit for x in found if x.device_type == kind]

    def wait_for_all(self):
        if self.num_processes > 1:
            ones = self.strategy.run(tf.function(lambda: tf.ones(())))
            self.strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)


def _is_news(record):
    """Return False for the warning about functions that are compiled often.

    Each TensorFlowUpdate is compiled anew, and taken for the same function.
    """
    return "triggered tf.function retracing" not in record.getMessage()


tf.get_logger().addFilter(_is_news)


@dataclasses.dataclass(frozen=True, eq=False)
class TensorFlowUpdate:
    """An update that runs on all replicas, several times in a call."""

    update: Update
    strategy: tf.distribute.Strategy

    def train(self, iterator, count: int, first: int):
        """Make updates; see `Engine.compile`."""
        made, sums, waited = self._train(
            iterator, tf.constant(count), tf.constant(first, tf.int64)
        )
        return int(made), sums.numpy(), float(waited)

    def measure(self, iterator, count: int) -> np.ndarray:
        """Return the sums over batches; see `Engine.compile`."""
        return self._measure(iterator, tf.constant(count)).numpy()

    # Autograph turns the loops into loops of the graph.
    @tf.function
    def _train(self, iterator, count, first):
        # In float64, the sums do not depend on how updates form calls.
        made, sums = tf.constant(0), tf.zeros(3, tf.float64)
        waited = tf.constant(0.0, tf.float64)
        for _ in tf.range(count):
            with tf.control_dependencies([sums]):
                start = tf.timestamp()
            with tf.control_dependencies([start]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(batch, True)):
                waited += tf.timestamp() - start
            measured = self.strategy.run(
                self.train_replica,
                args=(batch, first + tf.cast(made, tf.int64)),
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
            made += 1
            if not tf.math.is_finite(sums[0]):
                break
        return made, sums, waited

    @tf.function
    def _measure(self, iterator, count):
        sums = tf.zeros(self.update.num_measured, tf.float64)
        for _ in tf.range(count):
            measured = self.strategy.run(
                self.measure_replica, args=(next(iterator),)
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
        return sums

    def _sum_replicas(self, value):
        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, value, axis=None
        )

    # Autograph would double the time of tracing.
    @tf.autograph.experimental.do_not_convert
    def train_replica(self, batch, number):
        """Make an update, inside `strategy.run`.

        Args:
            batch: Images (B, ...), labels (B, C) and weights (B,) of one
                replica. The update uses the gradient of the weighted sum of
                the losses over all replicas, divided by the number of images.
            number: Number of the update, an int64.

        Returns:
            The sums of loss, hits and weights over the images, (3,).
        """
        update = self.update
        replica = tf.distribute.get_replica_context()
        seed = tf.stack([tf.cast(update.seed, tf.int64), number])
        seed = _fold(seed, replica.replica_id_in_sync_group)
        if update.accumulation_steps == 1:  # Once, and not for each variant.
            batch = update.teach(batch)
        others = update.model.non_trainable_variables
        scale = update.loss_scale.factor if update.loss_scale else 1.0
        differentiate = self._compute_gradients
        if update.variants:
            differentiate = functools.partial(self._variant_gradients, number)
        gradients, changed, measured = differentiate(
            _values(update.model.trainable_variables),
            _values(others),
            batch,
            seed,
            tf.convert_to_tensor(scale),
        )
        gradients = sum_gradients(gradients, update.gradient_dtype)
        gradients, is_finite = update.unscale(gradients, scale)
        if update.loss_scale:
            variables = update.loss_scale.state
            old = [tf.convert_to_tensor(variable) for variable in variables]
            new = update.loss_scale.next(*old, is_finite)
            assign_on_replicas(variables, new)
        if update.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, update.clip_norm)
        update.optimizer.apply(gradients, is_finite)
        if changed:  # The statistics of batch normalisations, and counters.
            variables = [others[index].value for index in changed]
            values = [tf.cast(new, tf.float32) for new in changed.values()]
            means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)
            means = [tf.cast(x, v.dtype) for x, v in zip(means, variables)]
            old = [tf.convert_to_tensor(variable) for variable in variables]
            means = update.unless_skipped(means, old, is_finite)
            assign_on_replicas(variables, means)
        return measured

    @tf.autograph.experimental.do_not_convert
    def measure_replica(self, batch):
        """Return the sums of `Update.measure` over the images of a replica.

        The averaged weights are evaluated, if there are any.
        """
        model = self.update.model
        weights = self.update.optimizer.averages
        if weights is None:
            weights = _values(model.trainable_variables)
        states = _values(model.non_trainable_variables)
        return self.update.measure(weights, states, batch)

    def _variant_gradients(self, number, *arguments):
        """Return the gradients of the variant for the update `number`."""
        count = len(self.update.variants)
        # The same on all replicas.
        seed = tf.stack([tf.cast(self.update.seed, tf.int64), number])
        index = tf.random.stateless_uniform((), seed, 0, count, tf.int32)
        return tf.switch_case(
            index,
            [
                functools.partial(self._compute_gradients, *arguments, variant)
                for variant in range(count)
            ],
        )

    @functools.cached_property
    def _compute_gradients(self):
        is_whole = self.update.accumulation_steps == 1
        return tf.function(
            self._differentiate if is_whole else self._accumulate,
            autograph=False,
            jit_compile=self.update.use_xla or None,
        )

    def _differentiate(self, weights, states, batch, seed, scale, variant=None):
        """Return gradients, changed states, and the sums of a batch.

        The gradients are those of the loss times `scale`. They are divided by
        the number of replicas and parts, so their sum is the gradient of the
        global batch. The changed states are keyed by their index among the
        non-trainable variables of the model.
        """
        update = self.update
        states = update.with_seeds(states, functools.partial(_fold, seed))
        parts = self.strategy.num_replicas_in_sync * update.accumulation_steps
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss, (new_states, measured) = update.compute_loss(
                weights, states, batch, variant
            )
            loss *= scale / parts
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        changed = update.find_changed(states, new_states)
        return as_dense(gradients, weights), changed, measured

    def _accumulate(self, weights, states, batch, seed, scale, variant=None):
        """Return the results of `_differentiate`, computed in parts."""
        parts = self.update.accumulation_steps
        # Part p has the images i of a replica with i // (B / parts) == p. Which
        # ones form a part matters to dropout and batch statistics alone.
        batches = tf.nest.map_structure(
            lambda x: tf.reshape(x, (parts, -1, *x.shape[1:])), batch
        )
        changed = []

        def add_part(index, gradients, means, measured):
            part = tf.nest.map_structure(lambda x: x[index], batches)
            part = self.update.teach(part)
            found = self._differentiate(
                weights, states, part, _fold(seed, index), scale, variant
            )
            changed[:] = found[1]
            sums = gradients, means, measured
            return index + 1, *self.update.add_part(sums, found, states)

        _, gradients, means, measured = tf.while_loop(
            lambda index, *_: index < parts,
            add_part,
            (
                tf.constant(0),
                [tf.zeros_like(weight) for weight in weights],
                states,
                tf.zeros(3),
            ),
            parallel_iterations=1,  # One part at a time in memory.
        )
        return gradients, {i: means[i] for i in changed}, measured


def _values(variables):
    """Return the values of variables; on a replica, its own copies."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def _fold(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)


# Gradients are summed in about as many packs, of at least so many bytes. A
# pack starts when the backward pass has computed it, so only the last one has
# to be waited for; below 1 MB a network waits for latency.
PACKS, LEAST_BYTES = 16, 2**20
SUM_DTYPES = ("float32", "bfloat16")


def as_dense(gradients: list, weights: list) -> list:
    """Return gradients as tensors of known shape.

    Those of weights whose rows are taken by index, such as relative positions,
    come as `tf.IndexedSlices`.
    """
    return [
        tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient, weight in zip(gradients, weights)
    ]


def sum_gradients(gradients: list, dtype: str = "float32") -> list:
    """Return the sums of gradients over all replicas, inside `strategy.run`.

    The gradients of vectors, those of biases and norms, are always summed in
    their own dtype.

    Args:
        gradients: Those of this replica, in the order of the layers. The last
            ones, which the backward pass computes first, are sent first.
        dtype: One of SUM_DTYPES, in which the others are sent and added. Of N
            replicas in bfloat16, a sum is wrong by at most about N * 2^-8 of
            the sum of the absolute values.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return gradients
    sent = [tf.cast(x, dtype) if x.shape.rank > 1 else x for x in gradients]
    sums = [None] * len(sent)
    # A pack has one dtype. The workers must have one order of the packs.
    for kind in dict.fromkeys(x.dtype for x in sent):
        places = [i for i, x in enumerate(sent) if x.dtype == kind]
        for i, total in zip(places, _sum_packs([sent[i] for i in places])):
            sums[i] = tf.cast(total, gradients[i].dtype)
    return sums


def _sum_packs(gradients):
    size = sum(x.shape.num_elements() * x.dtype.size for x in gradients)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=max(size // PACKS, LEAST_BYTES)
    )
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)


def assign_on_replicas(variables: list[tf.Variable], values: list):
    """Assign, in replica context, values that are the same on every replica."""

    def assign(strategy, *values):
        for variable, value in zip(variables, values):
            strategy.extended.update(
                variable,
                lambda variable, value: variable.assign(value),
                args=(value,),
                group=False,
            )

    tf.distribute.get_replica_context().merge_call(assign, args=tuple(values))


class TensorFlowState:
    """Writes and reads the state of a training as a TensorFlow checkpoint.

    TensorFlow verifies the checksum of each array that it reads. Checkpoints
    of the JAX engine are read as well.
    """

    def __init__(self, model, optimizer, loss_scale, numbers: dict):
        self.numbers = numbers
        # These variables are on the host, because a TPU has no float64.
        self._variables = {
            name: tf.Variable(value, name=name)
            for name, value in numbers.items()
        }
        self._named = name_variables(model, optimizer, loss_scale)
        self._roots = {"model": model, "optimizer": optimizer}
        if loss_scale:
            self._roots["loss_scale"] = loss_scale
        self._checkpoint = tf.train.Checkpoint(**self._roots, **self._variables)

    def write(self, path: str):
        """Write the state to files that begin with `path`."""
        for name, variable in self._variables.items():
            variable.assign(self.numbers[name])
        self._checkpoint.write(path)

    def read(self, path: str):
        """Read the state from files that begin with `path`.

        Raises:
            ValueError: If a file is damaged, or of another training.
        """
        tf.get_logger().addFilter(_is_worth_logging)
        if are_pieces(path):
            self._read_pieces(Pieces(path))
        else:
            reader = tf.compat.v1.train.NewCheckpointReader(path)
            find_arrays(reader, self._named, self.numbers, self._roots)
            self._checkpoint.read(path).assert_consumed()
        for name, variable in self._variables.items():
            self.numbers[name] = variable.numpy()

    def _read_pieces(self, pieces):
        """Read what the JAX engine has written."""
        numbers = {f"numbers/{n}": v for n, v in self._variables.items()}
        variables = self._named | numbers
        check_arrays(pieces.shapes, {n: v.shape for n, v in variables.items()})
        for name, variable in variables.items():
            variable.assign(tf.cast(pieces.read(name), variable.dtype))
        print(OF_THE_OTHER_ENGINE, flush=True)


def _is_worth_logging(record):
    """Return False for log records about arrays that were not restored.

    When the process ends, TensorFlow logs one record for each such array,
    although an error has already reported them.
    """
    return not record.getMessage().startswith(
        ("Detecting that an object", "Value in checkpoint could not be found")
    )


def make_engine(
    name: str, config: WorkerConfig = ALONE, model_devices: int = 1
) -> TensorFlowEngine:
    """Return the engine of a strategy; see `trainers.engine.engine`."""
    row, rows = pick(STRATEGIES, name, "strategy"), STRATEGIES.items()
    if config.workers and not row.takes_workers:
        refuse_workers(config, name, [n for n, r in rows if r.takes_workers])
    if model_devices > 1:
        raise ValueError(
            "`model_devices` needs KERAS_BACKEND=jax. "
            f"Received: model_devices={model_devices}"
        )
    return TensorFlowEngine(row.make(config))


@dataclasses.dataclass(frozen=True)
class StrategyRow:
    """A row of STRATEGIES.

    Args:
        make: Maps a WorkerConfig to the strategy.
        takes_workers: Whether it uses the argument `workers`.
    """

    make: Callable[[WorkerConfig], tf.distribute.Strategy]
    takes_workers: bool = False


def one_device(config):
    """Train on the first GPU, or on the CPU if there is none."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/{kind}:0")


@functools.cache  # A second one would reuse the collective keys of the first.
def mirrored(config):
    """Copy the model to every GPU of this machine, or every logical CPU."""
    devices = tf.config.list_logical_devices(
        "GPU"
    ) or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@functools.cache  # The processes meet only once.
def multi_worker(config):
    """Copy the model to every GPU of several machines, one process each."""
    cluster = find_cluster(config)
    addresses, index = addresses_of(cluster)
    wait_for_workers(addresses, addresses[index], config.start_timeout)
    handler = signal.getsignal(signal.SIGTERM)
    # A worker may be lost while TensorFlow connects them.
    with kill_after(config.start_timeout):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=cluster
        )
    signal.signal(signal.SIGTERM, handler)  # TensorFlow replaced the handler.
    return strategy


@functools.cache  # To initialise a TPU again would clear its memory.
def tpu(config):
    """Copy the model to every core of a TPU, or of a slice of several."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=config.tpu or "local"
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        # Without a TPU, the message continues with irrelevant attributes.
        reason = first_line(error).partition(" with these attrs")[0]
        raise ValueError(
            "`strategy='tpu'` found no TPU; `tpu` must be its name, its "
            "address or, on a TPU VM, be left out. "
            f"Received: tpu={config.tpu!r} ({reason})"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


STRATEGIES = {
    "one_device": StrategyRow(one_device),
    "mirrored": StrategyRow(mirrored),
    "multi_worker": StrategyRow(multi_worker, takes_workers=True),
    "tpu": StrategyRow(tpu),
}
