"""The memory that a training needs, estimated from the traced graph.

It is compared with the memory that there is, and decides how a batch is
computed if nobody has.
"""

import contextlib
import dataclasses
import gc
import pathlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import psutil
import tensorflow as tf

from keras_vit.models import VisionTransformer
from keras_vit.progress import scale
from trainers.engine.engine import Engine
from trainers.optim.optimizers import Optimizer, variable_bytes
from trainers.recipes.recipe import Recipe
from trainers.training.flops import check_image_shape

# Operations whose outputs are views of their inputs and need no memory.
VIEWS = {
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
# Operations whose outputs are always in memory: weights and constants.
RESIDENT = {"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"}


class Memory(NamedTuple):
    """The estimated bytes that a replica needs for training.

    Args:
        weights: All weights, including frozen ones, statistics, and those of
            a teacher.
        gradients: The gradient of each trainable weight; twice with gradient
            accumulation.
        optimizer: The slots of the optimizer.
        average: The moving average of the weights, if there is one.
        activations: The peak of all other tensors of the forward and backward
            pass.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int

    @property
    def total(self) -> int:
        """The sum, which assumes that all parts peak at the same time."""
        return sum(self)


def estimate_memory(
    model: keras.Model,
    batch_size_per_replica: int,
    optimizer: Optimizer,
    *,
    accumulation_steps: int = 1,
    runs: Sequence[Callable] = (),
    frozen: Sequence[keras.Model] = (),
) -> Memory:
    """Estimate the bytes that training needs on each replica.

    On JAX, the compiler says what it needs. On TensorFlow, traces a step and
    follows each tensor from the operation that creates it to the last one that
    reads it, in the order of tracing. The estimate respects
    the dtype policy and the rematerialization of the model. It excludes
    TensorFlow itself, the workspace of its kernels, fragmentation, savings by
    XLA fusion, and prefetched batches. Steps on a CPU took 0.15 to 0.35 GB
    more, see the test.

    Args:
        model: Any Keras model of images.
        batch_size_per_replica: Images of an update on one device.
        optimizer: The optimizer of the model's trainable weights.
        accumulation_steps: Number of parts of an update, computed one after
            the other. Must divide the number of images.
        runs: What is called instead of the model, one in each update.
        frozen: Other models that compute the same images before, such as a
            teacher.

    Raises:
        ValueError: See `count_flops`.
    """
    shape = check_image_shape(model)
    batch_size = batch_size_per_replica // accumulation_steps
    is_jax = keras.backend.backend() == "jax"
    find_peak = _peak_on_jax if is_jax else _peak_on_tensorflow
    peaks = [
        find_peak(model, run, batch_size, shape) for run in runs or (model,)
    ]
    for each in frozen:
        own = [a or b for a, b in zip(each.input_shape[1:], shape)]
        peaks.append(find_peak(each, each, batch_size, own, is_trained=False))
    kept = [v for each in (model, *frozen) for v in each.weights]
    trainable = sum(variable_bytes(v) for v in model.trainable_variables)
    slots, averages = optimizer.count_bytes()
    return Memory(
        weights=sum(map(variable_bytes, kept)),
        # With accumulation: the sum so far, and the gradients of one part.
        gradients=trainable if accumulation_steps == 1 else 2 * trainable,
        optimizer=slots,
        average=averages,
        activations=max(peaks),
    )


def _peak_on_jax(model, run, batch_size, image_shape, is_trained=True):
    """Return the bytes that the compiled gradients of a batch need, on JAX.

    Or those of its outputs.
    """
    import jax

    def compute(weights, states, images):
        outputs, *_ = run.stateless_call(
            weights, states, images, training=is_trained
        )
        return sum(x.astype("float32").sum() for x in jax.tree.leaves(outputs))

    images = jax.ShapeDtypeStruct(
        (batch_size, *image_shape), model.inputs[0].dtype
    )
    values = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
        )
    ]
    compute = jax.grad(compute) if is_trained else compute
    compiled = jax.jit(compute).lower(*values, images).compile()
    size = images.size * images.dtype.itemsize
    return compiled.memory_analysis().temp_size_in_bytes + size


def _peak_on_tensorflow(model, run, batch_size, image_shape, is_trained=True):
    """Return the bytes in the graph of the gradients of a batch, at its peak.

    Or of its outputs. In the order of tracing. The images are in memory during
    the whole step. Weights and gradients are not counted here.
    """

    @tf.function
    def gradients(images):
        if not is_trained:
            return run(images, training=False)
        variables = [v.value for v in model.trainable_variables]
        # As in a step, nothing is kept for the gradients of frozen weights.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            outputs = run(images, training=True)
        # The gradients of the logits: the loss itself needs little memory.
        return tape.gradient(outputs, variables)

    images = tf.TensorSpec((batch_size, *image_shape), model.inputs[0].dtype)
    graph = gradients.get_concrete_function(images).graph

    # From the operation that creates a tensor to the last one that reads it.
    operations = graph.get_operations()
    owner = {}  # Maps each tensor to the one whose memory it shares.
    for operation in operations:
        for index, tensor in enumerate(operation.outputs):
            is_view = operation.type in VIEWS
            source = operation.inputs[index] if is_view else tensor
            owner[tensor.ref()] = owner.get(source.ref(), source.ref())
    elsewhere = {owner[t.ref()] for t in graph.outputs if t.ref() in owner}
    last_reader = {
        owner[tensor.ref()]: index
        for index, operation in enumerate(operations)
        for tensor in operation.inputs
    }
    freed_after = {}
    images = graph.inputs[0]
    live = peak = _tensor_bytes(images)
    for index, operation in enumerate(operations):
        if operation.type not in RESIDENT | VIEWS:
            for tensor in operation.outputs:
                memory = tensor.ref()
                if memory in last_reader and memory not in elsewhere:
                    live += _tensor_bytes(tensor)
                    freed_after.setdefault(last_reader[memory], []).append(
                        _tensor_bytes(tensor)
                    )
        peak = max(peak, live)
        live -= sum(freed_after.pop(index, ()))
    return peak


def _tensor_bytes(tensor):
    # The only tensors without a static shape are shapes, a few numbers each.
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


class MemoryPlan(NamedTuple):
    """A way to compute a batch.

    Args:
        accumulation_steps: Number of parts of the batch of a replica.
        use_remat: Whether the blocks are computed again in the backward pass.
        memory: The estimated need of a replica.
        available: The bytes that it may use.
        rejected: The plans that need more memory than that.
    """

    accumulation_steps: int
    use_remat: bool
    memory: Memory
    available: int
    rejected: tuple["MemoryPlan", ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory.total <= self.available


def plan_memory(
    estimate: Callable[[int, bool], Memory],
    available: int,
    parts: Sequence[int],
    remat: Sequence[bool],
) -> MemoryPlan:
    """Return the first way to compute a batch that fits into memory.

    More parts are tried before rematerialization, which needs more time. If
    nothing fits, the way that needs the least memory is returned.

    Args:
        estimate: Returns the need of a replica for a number of parts, with or
            without rematerialization.
        available: The bytes that a replica may use.
        parts: The numbers of parts to choose from, the smallest first.
        remat: Whether to rematerialize: the choices, the preferred one first.
    """
    rejected = ()
    for use_remat in remat:
        whole = None
        for count in parts:
            if whole and count < parts[-1]:
                # The activations are in proportion to the images of a part.
                saved = whole.activations * (1 - parts[0] / count)
                if whole.total - saved > available:
                    continue
            memory = estimate(count, use_remat)
            whole = whole or memory
            plan = MemoryPlan(count, use_remat, memory, available, rejected)
            if plan.fits:
                return plan
            rejected = (*rejected, plan)
    return plan


def describe_plan(plan: MemoryPlan, batch_size: int, num_replicas: int) -> str:
    """Return a line that says how the batch is computed, and why."""
    num_images = batch_size // num_replicas
    on_devices = f" on {num_replicas} devices" if num_replicas > 1 else ""
    parts = plan.accumulation_steps
    way = f" in {parts} parts" if parts > 1 else ""
    way += " with rematerialization" if plan.use_remat else ""
    line = f"Batch {batch_size}{on_devices}{way}: "
    available = f"{scale(plan.available)}B are available"
    need = f"needs {scale(plan.memory.total)}B, {available}"
    if not plan.rejected:
        return f"{line}{need}."
    first = plan.rejected[0]
    reasons = [(f"{num_images} images at once", first)]
    if first.accumulation_steps > 1:
        reasons = [(f"{first.accumulation_steps} parts", first)]
    others = [p for p in plan.rejected[1:] if p.use_remat < plan.use_remat]
    reasons += [(f"{p.accumulation_steps} parts", p) for p in others[-1:]]
    texts = [f"{what} need {scale(p.memory.total)}B" for what, p in reasons]
    if plan.use_remat > first.use_remat:
        texts[0] = f"without it, {texts[0]}"
    if not plan.fits:
        return f"{line}{need}. Nothing needs less: {', '.join(texts)}."
    return f"{line}{', '.join(texts)}, {available}."


NUM_MEASURED = 3  # Updates.
CGROUP = pathlib.Path("/sys/fs/cgroup")
# A step keeps at most so many bytes of activations per FLOP of a forward pass,
# from Ti/16 on: 0.019 for a Ti/16, 0.010 for an S/16, 0.005 for a B/32.
LARGEST_BYTES_PER_FLOP = 0.02


def estimate_training_memory(trainer) -> Memory:
    """Return the estimated memory that a replica needs for training."""
    recipe, update = trainer.recipe, trainer.loop.update
    return estimate_memory(
        trainer.loop.model,
        recipe.batch_size // trainer.loop.engine.num_replicas,
        update.optimizer,
        accumulation_steps=recipe.accumulation_steps,
        runs=update.variants,
        frozen=teachers_of(trainer.loop),
    )


def teachers_of(loop) -> list[keras.Model]:
    """Return the teacher whose predictions a loop learns, if there is one."""
    teacher = loop.update.distillation and loop.update.distillation.teacher
    return [teacher] if teacher else []


def held_bytes(loop) -> int:
    """Return the bytes of weights and slots that are in memory already."""
    models = loop.model, *teachers_of(loop)
    weights = [v for model in models for v in model.weights]
    return sum(map(variable_bytes, weights)) + sum(loop.optimizer.count_bytes())


def available_bytes(engine: Engine, held: int = 0) -> int:
    """Return the memory that one replica of this process may use.

    For a CPU, the free memory of the machine, or of the container if that is
    less, shared by the replicas of the process.

    Args:
        engine: The engine of the run.
        held: What a replica holds already. It is part of what it needs, and
            the free memory of a CPU does not contain it any more.
    """
    if limits := engine.memory_limits():
        return min(limits)
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # No such limit.
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        free = min(free, limit - used)
    return free // len(engine.devices) + held


def describe_memory(memory: Memory, available: int) -> str:
    """Return the required and the available memory, as lines of text."""
    rows = memory._asdict() | {"total": memory.total, "available": available}
    return "\n".join(
        ["Memory of a device, estimated:"]
        + [f"  {name:12s} {scale(size)}B" for name, size in rows.items()]
    )


def describe_shortage(memory: Memory, available: int, trainer) -> str:
    """Return how to make a training fit into memory; empty if it does."""
    if memory.total <= available:
        return ""
    recipe, fixed = trainer.recipe, memory.total - memory.activations
    ways = []
    # Accumulating keeps the sum of the gradients as well.
    extra = memory.gradients if recipe.accumulation_steps == 1 else 0
    size = recipe.batch_size // trainer.loop.engine.num_replicas
    parts = recipe.accumulation_steps
    factors = [n for n in range(2, size // parts + 1) if size // parts % n == 0]
    for factor in factors:
        if fixed + extra + memory.activations / factor <= available:
            ways.append(f"--accumulation_steps={parts * factor}")
            break
    for share in (2, 4, 8, 16, 32, 64):
        if share > max(size // parts, 1):
            break  # A part has one image at least.
        if fixed + memory.activations / share <= available:
            ways.append(f"--batch_size={max(recipe.batch_size // share, 1)}")
            break
    if not recipe.use_remat:
        ways.append("--use_remat")
    if recipe.train_only is None and not recipe.lora_rank:
        ways.append("--train_only=head (with --init_from)")
    return (
        f"This does not fit: {scale(memory.total)}B are needed, "
        f"{scale(available)}B are free. To need less memory: "
        f"{', '.join(ways) or 'a smaller model'}."
    )


def warn_of_shortage(trainer):
    """Print how to make a training fit into memory, if it may not.

    The exact estimate takes some seconds, so a coarse one comes first.
    """
    loop = trainer.loop
    available = available_bytes(loop.engine, held_bytes(loop))
    images = trainer.recipe.batch_size / trainer.loop.engine.num_replicas
    images /= trainer.recipe.accumulation_steps
    coarse = images * trainer.flops_per_image * LARGEST_BYTES_PER_FLOP
    coarse += 16 * trainer.loop.model.count_params()  # As with AdamW.
    if coarse < available / 2:
        return
    shortage = describe_shortage(
        estimate_training_memory(trainer), available, trainer
    )
    if shortage:
        print(f"Warning: {shortage}", flush=True)


def measure_seconds_per_step(trainer) -> float:
    """Return the duration of an update, the mean of NUM_MEASURED.

    Changes the weights, so the run must not be trained afterwards.
    """
    loop = trainer.loop
    iterator = iter(loop.engine.batches(trainer.train_batches))

    def update(count):
        start = time.perf_counter()
        loop.compiled.train(iterator, count, loop.step)
        return time.perf_counter() - start

    with trainer.bad_examples.named_errors():
        update(1)  # Traces the graph.
        return update(NUM_MEASURED) / NUM_MEASURED


GATHERED_BYTES = 2**16  # The unit in which workers compare their memory.


def fit_to_memory(
    recipe: Recipe, free: Collection[str], make: Callable
) -> tuple[Recipe, Any, MemoryPlan]:
    """Return a recipe that fits into memory, its loop, and why it is so.

    The batch and the number of updates stay. An update in parts is that of the
    whole batch, except for batch normalization, so such a model is not
    computed in parts.

    Args:
        recipe: The recipe as it would be with enough memory.
        free: The fields to choose: `accumulation_steps`, `use_remat`.
        make: Returns the loop of a recipe.
    """
    loop = make(recipe)
    images = recipe.batch_size // loop.engine.num_replicas
    parts, remat = [recipe.accumulation_steps], [recipe.use_remat]
    if "accumulation_steps" in free and not has_batch_statistics(loop.model):
        parts = [n for n in range(1, images + 1) if images % n == 0]
    if "use_remat" in free and isinstance(loop.model, VisionTransformer):
        remat = [False, True]

    def estimate(num_parts, use_remat):
        nonlocal recipe, loop
        if use_remat != recipe.use_remat:
            recipe = dataclasses.replace(recipe, use_remat=use_remat)
            loop = None
            gc.collect()  # The other model would need memory as well.
            loop = make(recipe)
        return estimate_memory(
            loop.model,
            images,
            loop.optimizer,
            accumulation_steps=num_parts,
            runs=loop.update.variants,
            frozen=teachers_of(loop),
        )

    available = least_available_bytes(loop.engine, held_bytes(loop))
    plan = plan_memory(estimate, available, parts, remat)
    recipe = dataclasses.replace(
        recipe, accumulation_steps=plan.accumulation_steps
    )
    return recipe, loop.with_parts(plan.accumulation_steps), plan


def has_batch_statistics(model: keras.Model) -> bool:
    """Return whether a layer of a model computes statistics of a batch."""
    return any(
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        for layer in model._flatten_layers()
    )


def least_available_bytes(engine: Engine, held: int = 0) -> int:
    """Return the memory for a replica of the worker that has the least."""
    count = available_bytes(engine, held) // GATHERED_BYTES
    rows = engine.gather(np.array([count], "int32"))
    return int(rows.min()) * GATHERED_BYTES
