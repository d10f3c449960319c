"""Inference of the configuration of the model in a checkpoint."""

import collections
import dataclasses
import warnings
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.weights.counts import count_blocks, count_stem_units
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.positions import PUBLISHED, Known, infer_positions
from keras_vit.weights.shapes import Shapes

CLASS_TOKEN = ("class_token", "token", "token")


class Inferred(NamedTuple):
    """The configuration of the model of a checkpoint.

    Args:
        config: The configuration.
        has_class_slot: Whether the first row of the position table is that of
            the class token.
        notes: Assumptions, each with the argument that confirms or changes it.
    """

    config: ViTConfig
    has_class_slot: bool
    notes: tuple[str, ...]


def infer(shapes: Shapes, hints: dict, known: Known) -> Inferred:
    """Return the configuration that names, shapes and hints determine.

    Args:
        shapes: Shapes in the file.
        hints: Fields in the JSON beside the file, see `find_hints`.
        known: Facts that the caller knows.

    Raises:
        ValueError: If the arrays do not determine a size, or a
            VisionTransformer cannot express the model.
    """
    layout = shapes.layout
    try:
        sizes = _infer_sizes(shapes)
        config = ViTConfig(
            **sizes,
            **_infer_outputs(shapes, hints),
            **{
                # Without a hint, these fields follow the family.
                field: hints.get(field, getattr(layout, field))
                for field in ("activation", "layer_norm_epsilon")
            },
            stem_epsilons=_infer_stem_epsilons(shapes, hints, sizes),
            num_heads=_infer_heads(shapes, hints, known, sizes),
            # Any valid size, until the position table determines it.
            image_size=2**12 * sizes["patch_size"],
        )
        positions = infer_positions(shapes, hints, known, config)
        config = dataclasses.replace(config, **positions.fields)
        config, notes = layout.complete(config, hints)
    except ValueError as error:
        if shapes.detected.checkpoint.path in str(error):
            raise
        shapes.fail(str(error))
    return Inferred(config, positions.has_class_slot, notes)


def _infer_sizes(shapes) -> dict:
    patches = ("patch_encoder", "conv", "kernel")
    rows, columns, channels, _ = shapes.need(*patches, rank=4)
    if rows != columns:
        shapes.fail(f"its patches are not square but {rows}x{columns}.")
    depth = count_blocks(shapes)
    width = shapes.vote(
        (BLOCK + "attention_norm", "norm", "gamma", 1, 0),
        (BLOCK + "mlp_norm", "norm", "gamma", 1, 0),
        (*patches, 4, 3),
    )
    hidden = (BLOCK + "mlp/hidden", "dense", "kernel")
    mlp_dim = shapes.vote(
        (BLOCK + "mlp/hidden", "dense", "bias", 1, 0),
        (*hidden, 2, 1),
        (BLOCK + "mlp/out", "dense", "kernel", 2, 0),
    )
    if mlp_dim is None:
        shapes.fail(f"it lacks {shapes.name_of(*hidden, i=0)}.")
    stem_stages = count_stem_units(shapes)
    if stem_stages is not None:
        root = ("stem/root_conv", "stem", "kernel")
        channels = shapes.need(*root, rank=4)[2]
    return {
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "patch_size": rows,
        "channels": channels,
        "stem_stages": stem_stages,
    }


def _infer_outputs(shapes, hints) -> dict:
    """Return the fields of the class token, the pooling and the head."""
    has_token = shapes.has(*CLASS_TOKEN)
    has_pooling_norm = shapes.has("pooling_norm", "norm", "gamma")
    representation_size, classes = (
        shapes.vote(
            (layer, "dense", "bias", 1, 0), (layer, "dense", "kernel", 2, 1)
        )
        for layer in ("pre_logits", "predictions")
    )
    return {
        "use_class_token": has_token,
        "pooling": _infer_pooling(shapes, hints, has_token, has_pooling_norm),
        "use_pooling_norm": has_pooling_norm,
        "representation_size": representation_size,
        "num_classes": classes or 0,
    }


def _infer_pooling(shapes, hints, has_token, has_pooling_norm):
    has_probe = "probe" in shapes.layout.style and shapes.has(
        "pooling", "probe", "probe"
    )
    if has_probe:
        return "map"
    told = hints.get("pooling")
    if told == "token" and not has_token:
        name = shapes.name_of(*CLASS_TOKEN)
        shapes.fail(
            "its JSON states that it pools by the class token, but it lacks "
            f"{name}."
        )
    if told and told != "map":
        return told
    return "token" if has_token and not has_pooling_norm else "avg"


def _infer_stem_epsilons(shapes, hints, sizes):
    if sizes["stem_stages"] is None:
        return "official"  # There is no stem, so nothing differs.
    return hints.get("stem_epsilons", shapes.layout.stem_epsilons)


def _infer_heads(shapes, hints, known, sizes):
    """Return the number of heads.

    It comes from the shapes, the JSON beside the file, a published model of
    the same size, or the caller, in this order.
    """
    shown = collections.Counter()
    for index in range(sizes["depth"]):
        for weight, axis in (("kernel", 1), ("bias", 0)):
            row = (BLOCK + "attention/qkv", "heads_in", weight)
            shape = shapes.in_file(*row, i=index) or ()
            # Some families have a separate axis for the heads.
            if len(shape) == axis + 2 and 0 not in shape:
                shown[shape[axis]] += 1
    if shown:
        return shown.most_common(1)[0][0]
    published = _published_heads(sizes)
    told = hints.get("num_heads") or (hints.get("is_published") and published)
    if not told and published and known.num_heads == PUBLISHED:
        warnings.warn(
            f"{shapes.layout.title} does not store the number of heads: "
            f"{published} are assumed, as in the published model of this size. "
            "Pass `num_heads` if the model has another number.",
            stacklevel=2,
        )
        return published
    if told or known.num_heads not in (None, PUBLISHED):
        return told or known.num_heads
    hint = f" The published model of this size has {published}."
    shapes.fail(
        f"{shapes.layout.title} does not store the number of heads; pass "
        f"`num_heads=`.{hint if published else ''}"
    )


def _published_heads(sizes):
    """Return the number of heads of the published models of a size, or None."""
    fields = ("width", "depth", "mlp_dim")
    found = {
        row.config.num_heads
        for row in VARIANTS.values()
        if all(getattr(row.config, field) == sizes[field] for field in fields)
    }
    return found.pop() if len(found) == 1 else None
