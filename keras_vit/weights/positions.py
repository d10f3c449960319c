"""Inference of the position embedding and the image size of a checkpoint.

A position table has a row for each patch, and prefix rows before them. The
number of rows alone does not determine the grid: 50 rows may be 7x7 patches
and a class token, or 5x10 patches.
"""

import dataclasses
import math
import numbers
from typing import Any, NamedTuple

from keras_vit.arguments import is_whole
from keras_vit.layers.positions import POSITION_EMBEDDINGS
from keras_vit.models.config import ViTConfig
from keras_vit.weights.shapes import Shapes

TABLE = ("position_embedding", "embedding", "embedding")


# Stands for the number of heads of the published model of this size.
PUBLISHED = "published"


class Known(NamedTuple):
    """Facts about a checkpoint that the caller knows.

    Args:
        num_heads: Number of attention heads; PUBLISHED for that of the
            published model of the same size.
        image_size: (height, width) of the images of the new model, in pixels.
            It is also that of the file, if no other size fits.
        source_image_size: (height, width) of the images of the file.
        architecture: Name of the architecture in the code of the family.
        fields: Fields of ViTConfig. They count where the file leaves them
            open.
    """

    num_heads: int | str | None = None
    image_size: tuple[int, int] | int | None = None
    source_image_size: tuple[int, int] | int | None = None
    architecture: str | None = None
    fields: dict[str, Any] = {}

    def check(self):
        """Raise a ValueError for a value that no checkpoint can have."""
        heads, architecture = self.num_heads, self.architecture
        is_count = is_whole(heads) and heads > 0
        if heads not in (None, PUBLISHED) and not is_count:
            raise ValueError(
                "`num_heads` must be a whole number of at least 1, or "
                f"{PUBLISHED!r}. Received: num_heads={heads!r}"
            )
        if architecture is not None and not isinstance(architecture, str):
            raise ValueError(
                "`architecture` must be a name, such as "
                "'vit_base_patch16_224'. Received: "
                f"architecture={architecture!r}"
            )


NOTHING_KNOWN = Known()


class Positions(NamedTuple):
    """The positions of a checkpoint.

    Args:
        fields: Fields of ViTConfig: `image_size`, `use_prefix_positions`, and
            `position_embedding` if the file has no table.
        num_prefix_rows: Number of rows of the table before the patches.
    """

    fields: dict
    num_prefix_rows: int = 0


def infer_positions(
    shapes: Shapes, hints: dict, known: Known, config: ViTConfig
) -> Positions:
    """Return the position embedding of a checkpoint and its image size.

    Args:
        shapes: Shapes in the file.
        hints: Fields in the JSON beside the file.
        known: Facts that the caller knows.
        config: The configuration, except for the image size.

    Raises:
        ValueError: If the size is ambiguous. The message names the argument
            that determines it.
    """
    hints = {**known.fields, **hints}
    wanted = _pair(known.image_size)
    source = _pair(known.source_image_size)
    told = [source] if source else hints.get("image_sizes", [])
    shape = shapes.in_file(*TABLE)
    if shape is None:
        return _without_table(shapes, hints, config, [*told, wanted])
    if len(shape) not in (2, 3, 4) or shape[-1] != config.width:
        shapes.fail(
            f"{shapes.name_of(*TABLE)} has the shape {shape}; "
            f"(1, rows, {config.width}) was expected."
        )
    # NaFlex stores the table as the grid of patches.
    is_grid = len(shape) == 4 or (len(shape) == 3 and shape[0] > 1)
    if is_grid and not source:
        told = [tuple(side * config.patch_size for side in shape[-3:-1])]
    fit = _Fit(shapes, config, math.prod(shape[:-1]))
    if hints.get("use_prefix_positions") is False:
        fit.may_lack_slot = True
    size, rows = fit.choose(told, wanted, only_told=bool(source))
    # In the families of 2021, a class token without a row gets one of zeros.
    has_rows = rows == config.num_prefix_tokens or (
        not shapes.layout.has_later_parts
    )
    fields = {
        **sized(config, size),
        "use_prefix_positions": has_rows,
    }
    return Positions(fields, rows)


def _without_table(shapes, hints, config, sizes):
    kind = hints.get("position_embedding", shapes.layout.no_table)
    if kind is None and _has_other_positions(config, hints):
        kind = "none"
    layer_class = POSITION_EMBEDDINGS.get(kind)
    is_computed = layer_class is not None and layer_class.may_lack_table
    if not (is_computed or kind == "none"):
        advice = ""
        if shapes.layout.has_architectures:
            advice = (
                " If its model has rotary positions instead, pass "
                "`architecture=` or `rotary_positions=`."
            )
        shapes.fail(f"it lacks {shapes.name_of(*TABLE)}.{advice}")
    if sizes[0] is None:
        shapes.fail(
            "it has no position table, which would show the size of its "
            "images; pass `image_size=`."
        )
    if is_computed and config.width % layer_class.width_divisor:
        shapes.fail(
            "sine-cosine positions need a width that "
            f"{layer_class.width_divisor} divides, not {config.width}."
        )
    size = sized(config, sizes[0])
    return Positions({"position_embedding": kind, **size})


def sized(config: ViTConfig, size: tuple[int, int]) -> dict:
    """Return the fields for images of a size that a file states.

    The convolutions of all libraries ignore the border.

    Args:
        config: The configuration of the file, except for the image size.
        size: (height, width) in pixels.
    """
    config = dataclasses.replace(config, image_size=size, ignore_border=True)
    has_border = any(side % config.patch_size for side in config.feature_size)
    return {"image_size": size, "ignore_border": has_border}


def _has_other_positions(config, hints):
    rotary = hints.get("rotary_positions", config.rotary_positions)
    return rotary != "none" or config.relative_positions != "none"


class _Fit:
    """Finds the image sizes that fit the rows of a position table."""

    def __init__(self, shapes, config, rows):
        self.shapes, self.config, self.rows = shapes, config, rows
        with_token, without_token = shapes.layout.slots
        self.slots = with_token if config.use_class_token else without_token
        count = config.num_prefix_tokens
        if count > config.use_class_token:
            # Rows for all of these tokens, for none, or for the class token.
            self.slots = (count, 0, *self.slots[:1])
        self.may_lack_slot = (
            shapes.layout.may_lack_slot or count > config.use_class_token
        )

    def choose(self, told, wanted, only_told):
        """Return the image size of the table and its number of prefix rows.

        A size that the caller or the JSON states has priority, then a square
        grid. If neither fits, `wanted`, the size of the model, is tried.
        """
        usual = self.slots[0]
        stated = [(size, slot) for size in told for slot in self.slots]
        choices = [*stated, (self._square(usual), usual), (wanted, usual)]
        if self.may_lack_slot:
            choices += [(self._square(slot), slot) for slot in self.slots[1:]]
        if only_told:
            choices = stated
        fits = [
            choice
            for choice in choices
            if self._fits(*choice, may_have_border=choice in stated)
        ]
        if not fits:
            received = told[0] if only_told else wanted
            self.shapes.fail(
                f"its {self.rows} positions are not a square grid after a "
                "class token; pass `source_image_size=` (height, width) of its "
                f"images.{f' Received: {received}' if received else ''}"
            )
        size, _ = fits[0]
        if fits[0] not in stated and wanted not in (None, size):
            self._refuse_ambiguous(size, wanted)
        return fits[0]

    def _refuse_ambiguous(self, size, wanted):
        if any(self._fits(wanted, slot) for slot in self.slots):
            self.shapes.fail(
                f"its {self.rows} positions may be those of images of "
                f"{size[0]}x{size[1]} or {wanted[0]}x{wanted[1]} pixels; "
                "pass `source_image_size=`."
            )

    def _square(self, slot):
        """Return the size of a square image, or None if the grid is not one."""
        patches = max(self.rows - slot, 0)
        grid = math.isqrt(patches)
        if grid == 0 or grid * grid != patches:
            return None
        side = grid * self.config.patch_size * self.config.stem_stride
        return side, side

    def _fits(self, size, slot, may_have_border=False):
        if not size:
            return False
        try:
            fields = sized(self.config, size)
            config = dataclasses.replace(self.config, **fields)
        except ValueError:
            return False
        if config.ignore_border and not may_have_border:
            return False
        return math.prod(config.grid_size) == self.rows - slot


def _pair(size):
    """Return (height, width) of an argument, None for None."""
    if size is None:
        return None
    # ViTConfig raises an error for an invalid size.
    return (size, size) if isinstance(size, numbers.Number) else tuple(size)
