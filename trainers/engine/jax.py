"""The JAX engine: one compiled program trains on all devices.

`update.py` says what an update is. The state of a training is arrays that are
split over the devices, or copied to them, as the strategy says; XLA adds the
sums and the collection of pieces that this needs. Masks of dropout depend on
the seed, the update and the part of the batch, not on the devices. Batch
normalization uses the statistics of a whole part, over all devices.
"""

import atexit
import contextlib
import ctypes
import functools
import glob
import importlib.util
import json
import math
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
from jax._src.lib import _jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.distribution import layout_map
from keras_vit.tables import pick
from trainers.engine.cluster import (
    WorkerConfig,
    find_addresses,
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
    write_pieces,
)
from trainers.engine.rendezvous import (
    WorkerLostError,
    wait_for_first_worker,
)
from trainers.engine.update import Update

# A weight of fewer numbers is copied to every device.
LEAST_NUMBERS = 2**10
# TensorFlow reads the data and must leave the accelerators to JAX.
tf.config.set_visible_devices([], "GPU")


class Layouts(keras.distribution.ModelParallel):
    """The layout of every variable that is made in its scope.

    Args:
        mesh: The devices.
        shards: Whether the first axis of the mesh splits the weights.
    """

    def __init__(self, mesh: Mesh, shards: bool):
        names = list(mesh.axis_names)
        devices = [f"{d.platform}:{d.id}" for d in mesh.devices.flatten()]
        of_keras = keras.distribution.DeviceMesh(
            mesh.devices.shape, names, devices
        )
        super().__init__(
            layout_map=keras.distribution.LayoutMap(of_keras),
            batch_dim_name=names[0],
            auto_shard_dataset=False,
        )
        self._shards = shards
        self._by_path = {}
        if len(names) == 2:
            self._by_path = layout_map(of_keras, fully_sharded=shards)

    def get_variable_layout(self, variable):
        """Return the layout of a variable: its own, by its path, or by size."""
        if getattr(variable, "_layout", None) is not None:
            return variable._layout
        found = self._by_path and self._by_path[variable.path]
        if found:
            return found
        shape = tuple(variable.shape)
        axes = [None] * len(shape)
        if self._shards and math.prod(shape) >= LEAST_NUMBERS:
            count = self.device_mesh.shape[0]
            fitting = [i for i, n in enumerate(shape) if n % count == 0]
            if fitting:  # The longest axis that the devices divide.
                longest = max(fitting, key=lambda i: shape[i])
                axes[longest] = self.batch_dim_name
        return keras.distribution.TensorLayout(axes, self.device_mesh)


class JaxEngine(Engine):
    """Trains on the devices of all processes.

    Args:
        num_model_devices: Number of devices that share each pair of dense
            layers; the others share the batch.
        shards: Whether the devices that share a batch also share the weights.
        is_alone: Whether to use the first device only.
        addresses: The names of all processes; () if there is one.
    """

    lost = (jax.errors.JaxRuntimeError,)

    def __init__(
        self,
        num_model_devices: int = 1,
        shards: bool = False,
        is_alone: bool = False,
        addresses: tuple[str, ...] = (),
    ):
        # Those of a process are neighbours, and so are its images of a batch.
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        devices = np.array(devices[:1] if is_alone else devices)
        local = [d for d in devices if d.process_index == jax.process_index()]
        if len(local) % num_model_devices:
            raise ValueError(
                "`model_devices` must divide the number of devices of a "
                f"process, {len(local)}. "
                f"Received: model_devices={num_model_devices}"
            )
        shape, names = (len(devices) // num_model_devices,), ("batch",)
        if num_model_devices > 1:
            shape, names = (*shape, num_model_devices), ("batch", "model")
        self.mesh = Mesh(devices.reshape(shape), names)
        self._layouts = Layouts(self.mesh, shards) if len(devices) > 1 else None
        self.num_replicas = shape[0]
        self.index = jax.process_index()
        self.addresses = addresses
        self.saves_together = len(addresses) > 1
        self._local = local
        self.devices = tuple(
            f"/device:{d.platform.upper()}:{i}" for i, d in enumerate(local)
        )
        is_cpu = devices[0].platform == "cpu"
        self.num_processors = self.num_processes if is_cpu else len(devices)

    def memory_limits(self):
        found = [device.memory_stats() or {} for device in self._local]
        return [x["bytes_limit"] for x in found if "bytes_limit" in x]

    def scope(self):
        if self._layouts is None:
            return contextlib.nullcontext()
        return self._layouts.scope()

    def reading(self):
        if self._layouts is None:
            return contextlib.nullcontext()
        # Whole, since copies of models and resized tables need whole arrays.
        return jax.default_device(jax.local_devices(backend="cpu")[0])

    def place(self, model):
        for variable in model.variables if self._layouts else ():
            layout = self._layouts.get_variable_layout(variable)
            _put(variable, variable.numpy(), layout.backend_layout)
            variable._layout = layout

    def batches(self, make):
        return JaxBatches(self, make)

    def compile(self, update):
        if self.mesh.size > 1:
            check_gradient_dtype(update)
        return JaxUpdate(update, self.mesh)

    def state(self, model, optimizer, loss_scale, numbers):
        return JaxState(self, model, optimizer, loss_scale, numbers)

    def gather(self, row):
        if self.num_processes == 1:
            return row[None]
        return multihost_utils.process_allgather(row)

    def wait_for_all(self):
        if self.num_processes > 1:
            multihost_utils.sync_global_devices("wait")

    def part_from_all(self):
        super().part_from_all()
        _parted.set()

    @contextlib.contextmanager
    def whole(self, model, weights=None):
        if not self.saves_together:
            with super().whole(model, weights):
                yield
            return
        trained, others = (
            model.trainable_variables,
            model.non_trainable_variables,
        )
        variables = [*trained, *others]
        pieces = [variable.value for variable in variables]
        given = [*(weights or pieces[: len(trained)]), *pieces[len(trained) :]]
        for variable, value in zip(variables, given):
            value = collect(value)  # One after the other.
            if self.is_writer:
                variable._value = value
        try:
            yield
        finally:
            for variable, value in zip(variables, pieces):
                variable._value = value

    def content_of(self, variable):
        # JAX itself compares those that it splits.
        value = variable.value
        return collect(value).tobytes() if value.is_fully_replicated else b""


def collect(value) -> np.ndarray:
    """Return a whole array on the host; all processes must call this."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    return multihost_utils.process_allgather(value, tiled=True)


def check_gradient_dtype(update: Update):
    """Raise a ValueError unless gradients are summed as `gradient_dtype` says.

    XLA adds the gradients of several devices in the type in which the layers
    compute them. With layers of float16, the recipe must say float32: there is
    no other name for it, and the loss scale keeps the sums in range.
    """
    layers = update.model._flatten_layers()
    is_narrow = any(layer.compute_dtype == "bfloat16" for layer in layers)
    added = "bfloat16" if is_narrow else "float32"
    if update.gradient_dtype != added:
        raise ValueError(
            f"`gradient_dtype` must be {added!r} on several devices of JAX, "
            "which adds gradients as the layers compute them. "
            f"Received: gradient_dtype={update.gradient_dtype!r}"
        )


class JaxBatches:
    """The batches of a data set as arrays over all devices."""

    def __init__(self, engine: JaxEngine, make):
        self.engine, self.make = engine, make

    def __iter__(self):
        engine = self.engine
        # One element of the data set is the share of a whole process.
        share = Share(
            num_replicas=engine.num_processes,
            worker=engine.index,
            num_workers=engine.num_processes,
        )
        sharding = NamedSharding(engine.mesh, PartitionSpec("batch"))
        for batch in self.make(share).as_numpy_iterator():
            yield tuple(
                jax.make_array_from_process_local_data(sharding, x)
                for x in batch
            )


class JaxUpdate:
    """An update that is compiled for all devices, once for each variant.

    Updates are calls of that program one after the other.

    Between two calls, the state is in the variables of model, optimizer and
    loss scale.
    """

    def __init__(self, update: Update, mesh: Mesh):
        self.update = update
        self._on_all = NamedSharding(mesh, PartitionSpec())
        distillation = update.distillation
        teacher = distillation and distillation.teacher
        # Arguments of the program: as constants they would be part of it.
        self._taught_by = teacher.variables if teacher else []
        scale = update.loss_scale.state if update.loss_scale else []
        # The state of `_train_batch`, in its order.
        self._variables = (
            update.model.trainable_variables,
            update.model.non_trainable_variables,
            [p.slots for p in update.optimizer.parameters],
            update.optimizer.iterations,
            scale,
        )
        self._compiled = {}
        self._measure = jax.jit(self._measure_batch, out_shardings=self._on_all)

    def train(self, iterator, count: int, first: int):
        """Make updates; see `Engine.compile`."""
        state, sums, waited = self._read(), [], 0.0
        teacher = [variable.value for variable in self._taught_by]
        try:
            for number in range(first, first + count):
                start = time.perf_counter()
                batch = next(iterator)
                waited += time.perf_counter() - start
                run = self._program(state, self._choose_variant(number))
                state, measured = run(state, batch, np.uint32(number), teacher)
                sums.append(measured)
                wait_for_older(sums)
        finally:
            self._write(state)
        # Waits for the devices. Updates after a loss that is not finite were
        # made, but nobody will save them.
        sums = np.asarray(jax.device_get(sums), np.float64)
        bad = np.flatnonzero(~np.isfinite(sums[:, 0]))
        made = int(bad[0]) + 1 if len(bad) else count
        return made, sums[:made].sum(axis=0), waited

    def measure(self, iterator, count: int) -> np.ndarray:
        """Return the sums over batches; see `Engine.compile`."""
        *state, _ = self._read()
        sums = []
        for _ in range(count):
            sums.append(self._measure(*state, next(iterator)))
            wait_for_older(sums)
        return np.asarray(jax.device_get(sums), np.float64).sum(axis=0)

    def _read(self):
        return keras.tree.map_structure(self._place, self._variables)

    def _place(self, variable):
        value = variable.value
        if isinstance(value.sharding, NamedSharding):
            return value
        # As it comes back; otherwise, the program would be compiled twice.
        return jax.device_put(value, self._on_all)

    def _write(self, state):
        def write(variable, value):
            variable._value = value

        keras.tree.map_structure(write, self._variables, state)

    def _choose_variant(self, number):
        """Return the index of the variant of an update; None for no variants.

        It is chosen on the host, so that each is a program of its own.
        """
        count = len(self.update.variants)
        if not count:
            return None
        seed = [self.update.seed, number]
        return int(np.random.default_rng(seed).integers(count))

    def _program(self, state, variant):
        if variant not in self._compiled:
            shardings = jax.tree.map(lambda x: x.sharding, state)
            self._compiled[variant] = jax.jit(
                functools.partial(self._train_batch, variant),
                out_shardings=(shardings, self._on_all),
                donate_argnums=0,
            )
        return self._compiled[variant]

    def _train_batch(self, variant, state, batch, number, teacher):
        """Make the update `number`; return the new state and sums (3,).

        The sums are those of `Update.compute_loss`: loss, hits and weights.
        """
        update = self.update
        weights, states, slots, iterations, scale = state
        factor = scale[0] if scale else 1.0
        gradients, new_states, measured = self._accumulate(
            weights, states, batch, number, factor, variant, teacher
        )
        gradients, is_finite = update.unscale(gradients, factor)
        states = update.unless_skipped(new_states, states, is_finite)
        if scale:
            scale = update.loss_scale.next(*scale, is_finite)
        if update.clip_norm is not None:
            gradients = clip_by_norm(gradients, update.clip_norm)
        weights, slots, iterations = update.optimizer.next(
            weights, slots, iterations, gradients, is_finite
        )
        return (weights, states, slots, iterations, scale), measured

    def _accumulate(
        self, weights, states, batch, number, factor, variant, teacher
    ):
        """Return gradients, states and sums of a batch, over its parts.

        The gradients are those of the loss times `factor`.
        """
        update, parts = self.update, self.update.accumulation_steps
        key = jax.random.fold_in(jax.random.key(update.seed), number)

        def differentiate(part, key):
            def fold(index):
                return jax.random.key_data(jax.random.fold_in(key, index))

            given = update.with_seeds(states, fold)
            with keras.StatelessScope(zip(self._taught_by, teacher)):
                part = update.teach(part)

            def compute(weights):
                loss, rest = update.compute_loss(weights, given, part, variant)
                return loss * (factor / parts), rest

            grad = jax.grad(compute, has_aux=True)
            gradients, (new_states, measured) = grad(weights)
            return gradients, update.find_changed(given, new_states), measured

        if parts == 1:
            gradients, changed, measured = differentiate(batch, key)
            states = [changed.get(i, old) for i, old in enumerate(states)]
            return gradients, states, measured

        # Part p has the images i with i % parts == p: each device splits its
        # own, and what a part contains does not depend on the devices.
        batches = jax.tree.map(
            lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def add_part(sums, part):
            index, part = part
            found = differentiate(part, jax.random.fold_in(key, index))
            return update.add_part(sums, found, states), None

        start = (
            [jnp.zeros_like(weight) for weight in weights],
            list(states),
            jnp.zeros(3),
        )
        sums, _ = jax.lax.scan(add_part, start, (jnp.arange(parts), batches))
        return sums

    def _measure_batch(self, weights, states, slots, iterations, batch):
        optimizer = self.update.optimizer
        averages = optimizer.averages_of(weights, slots, iterations)
        return self.update.measure(averages or weights, states, batch)


def wait_for_older(results: list):
    """Wait until the devices have computed all results but the last one.

    Otherwise the host would run ahead, and each of its batches would wait on
    the devices. So there are two of them: one is computed, one comes next.
    """
    jax.block_until_ready(results[-2:-1])


def clip_by_norm(gradients: list, largest: float) -> list:
    """Return gradients whose global norm is at most `largest`.

    As those of `tf.clip_by_global_norm`, they are NaN if it is not finite.
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in gradients))
    factor = largest * jnp.minimum(1.0 / norm, 1.0 / largest) + (norm - norm)
    return [gradient * factor for gradient in gradients]


class JaxState:
    """Writes and reads the state of a training in pieces.

    Each process writes one file with the pieces that it has; a piece that
    several devices hold is written once. Checkpoints of the TensorFlow engine
    are read as well.
    """

    def __init__(self, engine, model, optimizer, loss_scale, numbers: dict):
        self.engine, self.numbers = engine, numbers
        self._variables = name_variables(model, optimizer, loss_scale)
        self._roots = {"model": model, "optimizer": optimizer}
        if loss_scale:
            self._roots["loss_scale"] = loss_scale

    def write(self, path: str):
        """Write the pieces of this process to a file behind `path`."""
        pieces, shapes = {}, {}
        for name, variable in self._variables.items():
            for shard in variable.value.addressable_shards:
                if shard.replica_id == 0:
                    begin = tuple(part.start or 0 for part in shard.index)
                    pieces[name, begin] = np.asarray(shard.data)
        if self.engine.is_writer:
            for name, value in self.numbers.items():
                pieces[f"numbers/{name}", (0,) * np.ndim(value)] = value
            shapes = {name: list(x) for name, x in self._shapes().items()}
        write_pieces(path, self.engine.index, pieces, shapes)
        if not self.engine.saves_together:
            self.complete(path)

    def _shapes(self):
        shapes = {n: v.shape for n, v in self._variables.items()}
        numbers = {f"numbers/{n}": np.shape(x) for n, x in self.numbers.items()}
        return shapes | numbers

    def complete(self, path: str):
        """Write the index, which says that the pieces are complete."""
        with tf.io.gfile.GFile(f"{path}.index", "w") as file:
            file.write(json.dumps({"processes": self.engine.num_processes}))

    def read(self, path: str):
        """Read the state from the pieces of all processes.

        Each reads what its devices need.

        Raises:
            ValueError: If a file is damaged, or of another training.
        """
        if not are_pieces(path):
            self._read_tensorflow(path)
            return
        pieces = Pieces(path)
        check_arrays(pieces.shapes, self._shapes())
        for name, variable in self._variables.items():
            known = {}  # Several devices may need the same piece.

            def read(index, name=name, known=known):
                key = repr(index)
                if key not in known:
                    known[key] = pieces.read(name, index)
                return known[key]

            variable._value = jax.make_array_from_callback(
                tuple(variable.shape), variable.value.sharding, read
            )
        for name in self.numbers:
            self.numbers[name] = pieces.read(f"numbers/{name}")

    def _read_tensorflow(self, path):
        """Read what the TensorFlow engine has written."""
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        keys = find_arrays(reader, self._variables, self.numbers, self._roots)
        for name in self.numbers:
            self.numbers[name] = reader.get_tensor(keys[f"numbers/{name}"])
        for name, variable in self._variables.items():
            if name in keys:
                value = reader.get_tensor(keys[name])
                _put(variable, value, variable.value.sharding)
        if self.engine.is_writer:
            print(OF_THE_OTHER_ENGINE, flush=True)


def _put(variable, value, sharding):
    """Set a variable to a whole array, split over devices."""
    value = value.astype(variable.value.dtype)
    variable._value = jax.make_array_from_callback(
        value.shape, sharding, value.__getitem__
    )


def one_device(model_devices, addresses):
    """Train on the first device."""
    return JaxEngine(is_alone=True)


def data_parallel(model_devices, addresses):
    """Copy the weights to every device; each computes a part of the batch."""
    return JaxEngine(addresses=addresses)


def fsdp(model_devices, addresses):
    """Split batch and weights over all devices; each collects what it needs."""
    return JaxEngine(model_devices, shards=True, addresses=addresses)


def tensor_parallel(model_devices, addresses):
    """Split each pair of dense layers over several devices."""
    if model_devices == 1:
        model_devices = jax.local_device_count()
    return JaxEngine(model_devices, addresses=addresses)


STRATEGIES = {
    "one_device": one_device,
    "data_parallel": data_parallel,
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
}


def make_engine(
    name: str, config: WorkerConfig, model_devices: int = 1
) -> JaxEngine:
    """Return the engine of a strategy; see `trainers.engine.engine`."""
    make = pick(STRATEGIES, name, "strategy")
    if name == "one_device":
        if config.workers:
            refuse_workers(config, name, [n for n in STRATEGIES if n != name])
        return make(model_devices, ())
    engine = make(model_devices, connect(config))
    _parted.clear()  # Another training may begin in the same processes.
    if engine.saves_together:
        _name_loss_at_abort(engine)
    return engine


SECONDS_WITHOUT_SIGN = 20  # After which a process counts as lost.


@functools.cache  # The processes meet only once.
def connect(config: WorkerConfig) -> tuple[str, ...]:
    """Connect with the other processes, and return the names of all.

    They are found as `find_addresses` says; those of a TPU find each other.

    Returns:
        The addresses; () if this process is alone.

    Raises:
        WorkerLostError: If others do not start in time.
    """
    addresses, index = find_addresses(config) or ([], 0)
    known = {}
    if len(addresses) > 1:
        wait = wait_for_first_worker
        listener = wait(addresses, addresses[index], config.start_timeout)
        known = {
            "coordinator_address": addresses[0],
            "num_processes": len(addresses),
            "process_id": index,
            "cluster_detection_method": "deactivate",
        }
    elif not _is_on_tpu():
        return ()
    # Its handler would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        with _without_wait_at_exit():
            jax.distributed.initialize(
                **known,
                initialization_timeout=math.ceil(config.start_timeout),
                heartbeat_timeout_seconds=SECONDS_WITHOUT_SIGN,
            )
    except jax.errors.JaxRuntimeError as error:
        raise WorkerLostError(
            "A worker was lost while all were starting "
            f"({type(error).__name__}). Start all of them again."
        ) from error
    atexit.register(_end_connection)
    if not known:
        count = jax.process_count()
        return tuple(f"process {i}" for i in range(count if count > 1 else 0))
    _KEPT.append(listener)  # Tells the others that this process is there.
    return tuple(addresses)


_KEPT = []
_parted = threading.Event()  # Whether the others expect this one to end.


def _end_connection():
    """Tell the others, at the end of Python, that this process is not lost."""
    if _parted.is_set():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.distributed.shutdown()


def _is_on_tpu():
    has_library = importlib.util.find_spec("libtpu") is not None
    return has_library and bool(
        glob.glob("/dev/accel*") + glob.glob("/dev/vfio/*")
    )


@contextlib.contextmanager
def _without_wait_at_exit():
    """Let a process that fails end at once, without waiting for the others."""
    make = _jax.get_distributed_runtime_client
    _jax.get_distributed_runtime_client = functools.partial(
        make, shutdown_on_destruction=False
    )
    try:
        yield
    finally:
        _jax.get_distributed_runtime_client = make


def _name_loss_at_abort(engine):
    """Name a lost process where JAX would abort this one without its name.

    That happens at once when the first process is lost, and later when one
    gives no sign. Python's own handlers do not run in the thread that aborts.
    """

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def explain(number):
        lost = engine.find_lost()
        if lost:
            error = engine.explain_loss(lost, "in training", "JAX ended it")
            os.write(sys.stderr.fileno(), f"Error: {error}\n".encode())
            os._exit(WorkerLostError.exit_code)

    _KEPT.append(explain)
    ctypes.CDLL(None).signal(signal.SIGABRT, explain)
