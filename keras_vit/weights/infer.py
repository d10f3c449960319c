"""Inference of the configuration of the model in a checkpoint."""

import collections
import dataclasses
import warnings
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.weights.counts import count_blocks, count_stem_units
from keras_vit.weights.infer_parts import infer_mlp_dim, infer_parts
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.positions import PUBLISHED, Known, infer_positions
from keras_vit.weights.shapes import Shapes
from keras_vit.weights.styles import FLAT_FORMS

CLASS_TOKEN = ("class_token", "token", "token")


class Inferred(NamedTuple):
    """The configuration of the model of a checkpoint.

    Args:
        config: The configuration.
        num_prefix_rows: Number of rows of the position table before the
            patches.
        notes: Assumptions, each with the argument that confirms or changes it.
        open_questions: What the file does not show, each with the argument
            that settles it.
    """

    config: ViTConfig
    num_prefix_rows: int
    notes: tuple[str, ...]
    open_questions: tuple[str, ...]


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
        if hints.get("depth", sizes["depth"]) != sizes["depth"]:
            shapes.fail(
                f"its configuration is of {hints['depth']} blocks, but it has "
                f"{sizes['depth']}."
            )
        config = ViTConfig(
            **sizes,
            **_infer_outputs(shapes, hints),
            **{
                # Without a hint, these fields follow the family.
                field: hints.get(field, getattr(layout, field))
                for field in ("activation", "layer_norm_epsilon")
            },
            num_heads=1,  # Until the sizes are known.
            **(infer_parts(shapes) if layout.has_later_parts else {}),
            stem_epsilons=_infer_stem_epsilons(shapes, hints, sizes),
            # Any valid size, until the position table determines it.
            image_size=2**12 * sizes["patch_size"],
        )
        heads = _infer_heads(shapes, hints, known, config)
        config = dataclasses.replace(config, num_heads=heads or 1)
        positions = _infer_positions(shapes, hints, known, config, heads)
        config = dataclasses.replace(config, **positions.fields)
        config, notes = layout.complete(config, hints, shapes.stored_names)
        settled, questions = _settle(shapes, hints, known, config, heads)
        config = dataclasses.replace(config, **settled)
    except ValueError as error:
        if shapes.detected.checkpoint.path in str(error):
            raise
        shapes.fail(str(error))
    return Inferred(config, positions.num_prefix_rows, notes, questions)


def _infer_positions(shapes, hints, known, config, heads):
    """Return the positions; an error also lists the other open questions."""
    try:
        return infer_positions(shapes, hints, known, config)
    except ValueError as error:
        _, questions = _settle(shapes, hints, known, config, heads)
        raise ValueError(" ".join([str(error), *questions])) from error


def _settle(shapes, hints, known, config, heads) -> tuple[dict, tuple]:
    """Return the fields that hints or the caller settle, and open questions."""
    layout, settled, questions = shapes.layout, {}, []
    stated = {**known.fields, **hints}
    for what, fields in layout.undetermined(config, shapes.stored_names):
        settled |= {name: stated[name] for name in fields if name in stated}
        left = [f"`{name}=`" for name in fields if name not in stated]
        if left:
            ways = "`architecture=`, or " if layout.has_architectures else ""
            questions.append(
                f"It has {what}, and does not show all that its model "
                f"computes: pass {ways}{', '.join(left)}."
            )
    if not heads:
        questions.append(_ask_for_heads(shapes, config))
    return settled, tuple(questions)


def _infer_sizes(shapes) -> dict:
    patches = ("patch_encoder", "conv", "kernel")
    form = shapes.layout.style["conv"]["kernel"][1]
    rank = 2 if form in FLAT_FORMS else 4
    rows, columns, channels, _ = shapes.need(*patches, rank=rank)
    if rows != columns:
        shapes.fail(f"its patches are not square but {rows}x{columns}.")
    depth = count_blocks(shapes)
    width = shapes.vote(
        (BLOCK + "attention_norm", "norm", "gamma", 1, 0),
        (BLOCK + "mlp_norm", "norm", "gamma", 1, 0),
        (*patches, rank, 3),
    )
    mlp_dim = infer_mlp_dim(shapes)
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
    representation_size, classes, distilled = (
        shapes.vote(
            (layer, "dense", "bias", 1, 0), (layer, "dense", "kernel", 2, 1)
        )
        for layer in ("pre_logits", "predictions", "predictions/class_head")
    )
    return {
        "use_class_token": has_token,
        "pooling": _infer_pooling(shapes, hints, has_token, has_pooling_norm),
        "use_pooling_norm": has_pooling_norm,
        "representation_size": representation_size,
        "num_classes": classes or distilled or 0,
    }


def _infer_pooling(shapes, hints, has_token, has_pooling_norm):
    has_probe = "probe" in shapes.layout.style and shapes.has(
        "pooling", "probe", "probe"
    )
    stated = hints.get("pooling")
    if has_probe and stated not in ("token", "avg"):
        is_plain = shapes.layout.has_later_parts and not shapes.has(
            "pooling/query", "heads_in", "kernel"
        )
        return "probe" if is_plain else "map"
    if stated == "token" and not has_token:
        name = shapes.name_of(*CLASS_TOKEN)
        shapes.fail(
            "its JSON states that it pools by the class token, but it lacks "
            f"{name}."
        )
    if stated and not stated.startswith("map"):
        return stated
    return "token" if has_token and not has_pooling_norm else "avg"


def _infer_stem_epsilons(shapes, hints, sizes):
    if sizes["stem_stages"] is None:
        return "official"  # There is no stem, so nothing differs.
    return hints.get("stem_epsilons", shapes.layout.stem_epsilons)


def _infer_heads(shapes, hints, known, config) -> int | None:
    """Return the number of heads, or None if it is not known.

    It comes from the shapes, the JSON beside the file, a published model of
    the same size, or the caller, in this order.
    """
    shown = collections.Counter()
    for index in range(config.depth):
        for weight, axis in (("kernel", 1), ("bias", 0)):
            row = (BLOCK + "attention/qkv", "heads_in", weight)
            shape = shapes.in_file(*row, i=index) or ()
            # Some families have a separate axis for the heads.
            if len(shape) == axis + 2 and 0 not in shape:
                shown[shape[axis]] += 1
    if shown:
        return shown.most_common(1)[0][0]
    published = _published_heads(config)
    stated = (
        hints.get("num_heads")
        or shapes.layout.guess_heads(config, hints)
        or (hints.get("is_published") and published)
    )
    if not stated and published and known.num_heads == PUBLISHED:
        warnings.warn(
            f"{shapes.layout.title} does not store the number of heads: "
            f"{published} are assumed, as in the published model of this size. "
            "Pass `num_heads` if the model has another number.",
            stacklevel=2,
        )
        return published
    if stated or known.num_heads not in (None, PUBLISHED):
        return stated or known.num_heads
    return None


def _ask_for_heads(shapes, config):
    published = _published_heads(config)
    hint = f" The published model of this size has {published}."
    return (
        f"{shapes.layout.title} does not store the number of heads; pass "
        f"`num_heads=`.{hint if published else ''}"
    )


def _published_heads(config):
    """Return the number of heads of the published models of a size, or None."""
    fields = ("width", "depth", "mlp_dim")
    found = {
        row.config.num_heads
        for row in VARIANTS.values()
        if all(getattr(row.config, f) == getattr(config, f) for f in fields)
    }
    return found.pop() if len(found) == 1 else None
