"""The numbers of blocks and of stem units, counted by the names in a file."""

import collections
import re

from keras_vit.weights.layer_shapes import BLOCK, UNIT
from keras_vit.weights.shapes import Shapes

# Pattern of a number in a name, and a placeholder for such a number.
NUMBER = r"(\d{1,6})"
ANY_NUMBER = 987_654
# Far more stages than any hybrid has.
MAX_STAGE = 16


def count_blocks(shapes: Shapes) -> int:
    """Return the number of blocks; fail if a block in between is missing.

    Args:
        shapes: Shapes in the file.
    """
    row = (BLOCK + "attention_norm", "norm", "gamma")
    # Any array of a block is enough to count the block.
    name = shapes.name_of(*row, i=ANY_NUMBER)
    start, _, _ = name.partition(str(ANY_NUMBER))
    pattern = re.compile(re.escape(start) + NUMBER + r"[./]")
    names = shapes.detected.names
    found = [pattern.match(name) for name in names]
    indices = {int(match[1]) for match in found if match}
    if "{_i}" in shapes.layout.names[row[0]]:
        # These families write no number for the first block.
        zero = start.removesuffix("_") + "/"
        indices |= {0 for name in names if name.startswith(zero)}
    if not indices:
        first = shapes.name_of(*row, i=0)
        shapes.fail(f"it has no block; {first} is missing.")
    if len(indices) <= max(indices):
        lost = next(i for i in range(len(indices) + 1) if i not in indices)
        shapes.fail(
            f"it lacks {shapes.name_of(*row, i=lost)}, of block {lost} of "
            f"{max(indices) + 1}."
        )
    return len(indices)


def count_stem_units(shapes: Shapes) -> tuple[int, ...] | None:
    """Return the number of units in each stage of the stem, None without one.

    Args:
        shapes: Shapes in the file.
    """
    if not shapes.has("stem/root_conv", "stem", "kernel"):
        return None
    template = UNIT + "conv1"
    any_unit = dict.fromkeys(("s", "u", "s1", "u1"), ANY_NUMBER)
    pattern = re.escape(shapes.name_of(template, "stem", "kernel", **any_unit))
    pattern = pattern.replace(str(ANY_NUMBER), NUMBER)
    units = [re.fullmatch(pattern, name) for name in shapes.detected.names]
    units = {(int(match[1]), int(match[2])) for match in units if match}
    if not units:
        return ()
    # The official code counts from one, timm from zero.
    base = 1 if "{s1}" in shapes.layout.names[template] else 0
    counts = collections.Counter(stage - base for stage, _ in units)
    last = max(counts)
    if min(counts) < 0 or last > MAX_STAGE:
        shapes.fail(f"its stem has a stage {last + base}.")
    return tuple(counts[stage] for stage in range(last + 1))
