"""Plans to compute the batch of a recipe in the available memory."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainers.loop.memory import Memory
from trainers.runs.summaries import scale


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
    """Return a line that says how the batch is computed, and why.

    Args:
        plan: How a batch is computed.
        batch_size: Images of a batch, over all replicas.
        num_replicas: Number of replicas.
    """
    num_images = batch_size // num_replicas
    on_devices = f" on {num_replicas} devices" if num_replicas > 1 else ""
    line = f"Batch {batch_size}{on_devices}{_describe_way(plan)}: "
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


def _describe_way(plan):
    count = plan.accumulation_steps
    parts = f" in {count} parts" if count > 1 else ""
    return parts + (" with rematerialization" if plan.use_remat else "")
