"""Inference of the configuration of a model from names, shapes and JSON."""

import collections
import dataclasses
import math
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from keras_vit.layers import (
    ACTIVATIONS,
    POOLINGS,
    POSITION_EMBEDDINGS,
    STEM_EPSILONS,
)
from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS

# Stands for the number of heads of the published model of this size.
PUBLISHED = "published"
BLOCK = "block_#/"
POSITION_TABLE = "position_embedding/embedding"
PATCHES = "patch_encoder/kernel"
# Arrays that show the hidden size of an MLP, with a rank and an axis.
MLP_OUT = (BLOCK + "mlp/out/kernel", 2, 0)
MLP_HIDDEN = (
    (BLOCK + "mlp/hidden/bias", 1, 0),
    (BLOCK + "mlp/hidden/kernel", 2, 1),
)
# A pattern of a number in a name, and a placeholder for such a number.
NUMBER, ANY_NUMBER = r"(\d{1,6})", 987_654
# Far more stages than any hybrid has.
MAX_STAGE = 16
# The largest number of objects and lists in a JSON file that are searched.
MAX_VALUES = 10_000


class Known(NamedTuple):
    """Facts about a checkpoint that the caller knows."""

    num_heads: int | str | None = None  # Or PUBLISHED.
    # (height, width) of the images of the new model, in pixels. It is also that
    # of the file, if no other size fits.
    image_size: tuple[int, int] | int | None = None
    source_image_size: tuple[int, int] | int | None = None  # Of the file.
    architecture: str | None = None  # In the code of the family.
    # Fields of ViTConfig, for what the file leaves open.
    fields: dict[str, Any] = {}


NOTHING_KNOWN = Known()


@dataclasses.dataclass
class Shapes:
    """The shapes of the arrays of a file, looked up by weights of a model.

    Args:
        family: The family, with the variants of the file.
        shapes: The shapes, by name in the family.
        stored: The names as they are in the file.
        notes: Assumptions of `infer`.
        questions: What `infer` left open.
    """

    family: Any
    shapes: dict[str, tuple]
    stored: Collection[str]
    notes: list[str] = dataclasses.field(default_factory=list)
    questions: list[str] = dataclasses.field(default_factory=list)

    def of(self, path: str, *numbers: int) -> tuple | None:
        """Return the shape of a weight in the file, None without it.

        `path` has "#" for `numbers`, which are 0 by default. Of a weight in
        several arrays, the first one counts.
        """
        names, _ = self.family.stored(path, *numbers)
        return self.shapes.get(names[0]) if names else None

    def vote(self, *witnesses: tuple[str, int, int]) -> int | None:
        """Return the most frequent size in several arrays, None without one.

        `witnesses` are the path of a weight, the rank of its array, and the
        axis of the weight that has this size. A damaged array is outvoted
        here, and reported when all arrays are compared with the configuration.
        """
        votes = collections.Counter()
        for path, rank, axis in witnesses:
            for index in range(3 if "#" in path else 1):
                names, form = self.family.stored(path, index)
                shape = self.shapes.get(names[0], ()) if names else ()
                if len(shape) == rank and 0 not in shape:
                    array = np.broadcast_to(np.float32(0), shape)
                    votes[form.to_ours(array, shape).shape[axis]] += 1
        return votes.most_common(1)[0][0] if votes else None

    def numbers(self, name: str, end: str = "$") -> set[tuple[int, ...]]:
        """Return the numbers in the names that are like `name`.

        It has ANY_NUMBER, or that and one more; `end` is a pattern of what
        follows.
        """
        pattern = re.escape(name)
        for number in (ANY_NUMBER, ANY_NUMBER + 1):
            pattern = pattern.replace(str(number), NUMBER)
        matches = [re.match(pattern + end, name) for name in self.shapes]
        found = filter(None, matches)
        return {tuple(map(int, match.groups())) for match in found}


def infer(
    family, json: dict, shapes: Shapes, known: Known = NOTHING_KNOWN
) -> ViTConfig:
    """Return the configuration of the model in a file.

    `json` is beside it, and `known` counts for what the file does not show.
    `shapes` receives notes on assumptions, and questions that are left open.

    Raises:
        ValueError: If the arrays do not determine a size, or no
            VisionTransformer computes the model.
    """
    architecture = known.architecture
    if architecture is not None:
        if not family.has_architectures:
            raise ValueError(
                f"{family.title} has no names of architectures. Received: "
                f"architecture={architecture!r}"
            )
        json = {**json, "architecture": architecture}
    hints, reasons = {}, []
    try:
        json, hints = family.read_hints(json)
    except ValueError as error:
        reasons.append(f"{str(error).rstrip('.')}.")
    try:
        hints |= find_hints(json)
    except ValueError as error:
        reasons.append(str(error))
    if reasons:
        raise ValueError(" ".join(reasons))
    is_unused = not hints.keys() & {"architecture", "is_of_transformers"}
    if architecture is not None and is_unused:
        raise ValueError(
            f"`architecture` must be the name of a ViT in {family.title}, such "
            "as vit_base_patch16_224. Received: "
            f"architecture={architecture!r}"
        )

    sizes = _infer_sizes(shapes)
    if hints.get("depth", sizes["depth"]) != sizes["depth"]:
        raise ValueError(
            f"its configuration is of {hints['depth']} blocks, but it has "
            f"{sizes['depth']}."
        )
    fields = sizes | _infer_outputs(shapes, hints)
    if family.has_later_parts:
        fields |= _infer_later_parts(shapes, sizes)
    if sizes["stem_stages"] is not None:
        fields["stem_epsilons"] = hints.get(
            "stem_epsilons", family.stem_epsilons
        )
    for field in ("activation", "layer_norm_epsilon"):
        # Without a hint, these fields follow the family.
        fields[field] = hints.get(field, getattr(family, field))
    # Any valid number and size, until they are known.
    side = 2**12 * sizes["patch_size"]
    config = ViTConfig(**fields, num_heads=1, image_size=side)
    heads = _infer_heads(shapes, hints, known, config)
    config = dataclasses.replace(config, num_heads=heads or 1)
    try:
        fields = _infer_positions(shapes, hints, known, config)
    except ValueError as error:
        # It also lists the other open questions.
        _settle(shapes, hints, known, config, heads)
        text = " ".join([str(error), *shapes.questions])
        raise ValueError(text) from error
    cells = [math.ceil(n / config.stem_stride) for n in fields["image_size"]]
    # Pixels that fill no patch; all libraries ignore them.
    fields["ignore_border"] = any(cell % config.patch_size for cell in cells)
    config = dataclasses.replace(config, **fields)
    config = family.complete(config, hints, shapes)
    fields = _settle(shapes, hints, known, config, heads)
    config = dataclasses.replace(config, **fields)
    stated = hints.get("stated_classes")
    if type(stated) is int and stated > 0 and not config.num_classes:
        lacks = (
            f"The file lacks the head of {stated} outputs that its JSON states"
        )
        if "num_classes" not in known.fields:
            raise ValueError(
                f"{lacks}; pass `classes=0` for the features before it, or "
                "another number for a new head."
            )
        if known.fields["num_classes"]:
            shapes.notes.append(f"{lacks}.")

    ends = (name.rpartition(".")[2] for name in shapes.stored)
    names, resize = {*shapes.shapes, *ends}, family.position_resize
    for shown, lacking, rule in reversed(family.other_resizes):
        if names.issuperset(shown) and lacking not in names:
            resize = rule
    changes = {"position_resize": hints.get("position_resize", resize)}
    if config.num_classes and hints.get("classifier_activation"):
        changes["classifier_activation"] = hints["classifier_activation"]
    return dataclasses.replace(config, **changes)


def _settle(shapes, hints, known, config, heads) -> dict:
    """Return fields that hints or the caller settle; note open questions."""
    family, settled, questions = shapes.family, {}, []
    stated = {**known.fields, **hints}
    for what, fields in family.undetermined(config, shapes.stored):
        settled |= {name: stated[name] for name in fields if name in stated}
        left = [f"`{name}=`" for name in fields if name not in stated]
        if left:
            ways = "`architecture=`, or " if family.has_architectures else ""
            questions.append(
                f"It has {what}, and does not show all that its model "
                f"computes: pass {ways}{', '.join(left)}."
            )
    if not heads:
        published = _published_heads(config)
        hint = f" The published model of this size has {published}."
        questions.append(
            f"{family.title} does not store the number of heads; pass "
            f"`num_heads=`.{hint if published else ''}"
        )
    shapes.questions = questions
    return settled


# ---------------------------------------------------------- sizes and layers


def _infer_sizes(shapes) -> dict:
    """Return the sizes; fail if one does not show, or a block is missing."""
    family = shapes.family
    [name], form = family.stored(PATCHES)
    one = np.broadcast_to(np.float32(0), (1, 1, 3, 1))
    rank = form.to_file(one, 1).ndim  # Flat patches are a matrix.
    rows, columns, channels = (
        shapes.vote((PATCHES, rank, axis)) for axis in range(3)
    )
    if rows is None:
        shape = shapes.of(PATCHES)
        problem = f"{name} has the shape {shape}, not of rank {rank}."
        raise ValueError(problem if shape else f"it lacks {name}.")
    if rows != columns:
        raise ValueError(f"its patches are not square but {rows}x{columns}.")
    norm = BLOCK + "attention_norm/gamma"
    width = shapes.vote(
        (norm, 1, 0),
        (BLOCK + "mlp_norm/gamma", 1, 0),
        (PATCHES, rank, 3),
    )

    stem_stages = None
    if shapes.of("stem/root_conv/kernel"):
        channels = shapes.vote(("stem/root_conv/kernel", 4, 2)) or channels
        unit = "stem/stage_#_unit_#/conv1/kernel"
        [name], _ = family.stored(unit, ANY_NUMBER, ANY_NUMBER)
        # The official code counts stages from one, timm from zero.
        base = int(str(ANY_NUMBER + 1) in name)
        units = collections.Counter(s - base for s, _ in shapes.numbers(name))
        last = max(units, default=-1)
        if min(units, default=0) < 0 or last > MAX_STAGE:
            raise ValueError(f"its stem has a stage {last + base}.")
        stem_stages = tuple(units[stage] for stage in range(last + 1))

    [name], _ = family.stored(norm, ANY_NUMBER)
    start = name.partition(str(ANY_NUMBER))[0]
    # Any array of a block is enough to count the block.
    found = shapes.numbers(f"{start}{ANY_NUMBER}", r"[./]")
    blocks = {index for (index,) in found}
    if "{_i}" in family.layers[BLOCK + "attention_norm"]:
        # These families write no number for the first block.
        zero = start.removesuffix("_") + "/"
        blocks |= {0 for name in shapes.shapes if name.startswith(zero)}
    depth = max(blocks, default=0) + 1
    lost = next((index for index in range(depth) if index not in blocks), None)
    if lost is not None:
        [name], _ = family.stored(norm, lost)
        raise ValueError(f"it lacks {name}, of block {lost} of {depth}.")

    is_gated = False
    if family.has_later_parts:
        # The first layer of a gated MLP has the gate in it, or beside it.
        out, hidden = shapes.vote(MLP_OUT), shapes.vote(*MLP_HIDDEN)
        is_beside = isinstance(family.layers[BLOCK + "mlp/hidden"], tuple)
        is_gated = is_beside or (bool(out) and hidden == 2 * out)
    mlp_dim = shapes.vote(MLP_OUT, *(() if is_gated else MLP_HIDDEN))
    if mlp_dim is None:
        raise ValueError(f"it lacks {family.stored(MLP_HIDDEN[1][0])[0][0]}.")
    return {
        "use_gated_mlp": is_gated,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "patch_size": rows,
        "channels": channels,
        "stem_stages": stem_stages,
    }


def _infer_outputs(shapes, hints) -> dict:
    """Return the fields of the class token, the pooling and the head."""
    has_token = bool(shapes.of("class_token/token"))
    has_pooling_norm = bool(shapes.of("pooling_norm/gamma"))
    sizes = [
        shapes.vote((f"{layer}/bias", 1, 0), (f"{layer}/kernel", 2, 1))
        for layer in ("pre_logits", "predictions", "predictions/class_head")
    ]
    stated = hints.get("pooling")
    pooling = "token" if has_token and not has_pooling_norm else "avg"
    if shapes.of("pooling/probe") and stated not in ("token", "avg"):
        has_query = shapes.of("pooling/query/kernel")
        is_plain = shapes.family.has_later_parts and not has_query
        pooling = "probe" if is_plain else "map"
    elif stated == "token" and not has_token:
        raise ValueError(
            "its JSON states that it pools by the class token, but it lacks "
            f"{shapes.family.stored('class_token/token')[0][0]}."
        )
    elif stated and not stated.startswith("map"):
        pooling = stated
    return {
        "use_class_token": has_token,
        "pooling": pooling,
        "use_pooling_norm": has_pooling_norm,
        "representation_size": sizes[0],
        "num_classes": sizes[1] or sizes[2] or 0,
    }


def _infer_later_parts(shapes, sizes) -> dict:
    """Return the fields of the parts of later ViTs that a file shows.

    What does not show, such as rotary positions without weights, is told by
    the JSON or by the name of the architecture.
    """
    find, attention = shapes.of, BLOCK + "attention/"
    registers = find("registers/token")
    qk_norm = "none"
    if query_norm := find(attention + "query_norm/gamma"):
        is_wide = query_norm == find(BLOCK + "attention_norm/gamma")
        qk_norm = "width" if is_wide else "head"
    qkv_bias = "all" if find(attention + "qkv/bias") else "none"
    if find(attention + "query_bias"):
        # Files may show a bias of the keys in some of the blocks alone.
        names, _ = shapes.family.stored(attention + "qkv/bias", ANY_NUMBER)
        if len(names) == 1 or not shapes.numbers(names[1]):
            qkv_bias = "query_value"
    has_scale = find(BLOCK + "attention_scale/scale")
    is_partial = has_scale and not find(BLOCK + "mlp_scale/scale")
    pooling_mlp = find("pooling/mlp/hidden/bias")
    pooling_mlp_dim = math.prod(pooling_mlp) if pooling_mlp else None
    if pooling_mlp_dim == sizes["mlp_dim"]:
        pooling_mlp_dim = None
    fields = {
        **{field: bool(find(path)) for field, path in SHOWN_BY.items()},
        "num_registers": math.prod(registers[:-1]) if registers else 0,
        "norm": "layer" if find(BLOCK + "attention_norm/beta") else "rms",
        "qk_norm": qk_norm,
        "use_final_norm": bool(
            find("encoder_norm/gamma") or find("pooling_norm/gamma")
        ),
        # Only a new model needs the value.
        "layer_scale_init": 1e-5 if has_scale else None,
        "layer_scale_branches": "attention" if is_partial else "both",
        "qkv_bias": qkv_bias,
        "pooling_mlp_dim": pooling_mlp_dim,
    }
    if find("rotary_positions_#/frequency"):
        fields["rotary_positions"] = "mixed"
    if find("rotary_positions/class_angles"):
        fields["rotary_positions"] = "axial_class"
    for layer in ("relative_positions_#", "relative_positions"):
        is_shared = "#" not in layer
        if hidden := find(layer + "/hidden/bias"):
            fields["relative_positions"] = "mlp"
            fields["relative_hidden_dim"] = hidden[0]
            fields["use_shared_relative_positions"] = is_shared
        elif find(layer + "/table"):
            fields["relative_positions"] = "table"
            fields["use_shared_relative_positions"] = is_shared
    return fields


# The array that shows each of these parts.
SHOWN_BY = {
    "use_distillation_token": "distillation_token/token",
    "use_patch_bias": "patch_encoder/bias",
    "use_patch_norm": "patch_norm/gamma",
    "use_embedding_norm": "embedding_norm/gamma",
    "use_attention_inner_norm": BLOCK + "attention/inner_norm/gamma",
    "use_mlp_inner_norm": BLOCK + "mlp/inner_norm/gamma",
    "use_block_bias": BLOCK + "attention/out/bias",
}


def _infer_heads(shapes, hints, known, config) -> int | None:
    """Return the number of heads, or None if it is not known."""
    shown = collections.Counter()
    for index in range(config.depth):
        for weight, axis in (("kernel", 1), ("bias", 0)):
            path = f"{BLOCK}attention/qkv/{weight}"
            shape = shapes.of(path, index) or ()
            # Some families have a separate axis for the heads.
            if len(shape) == axis + 2 and 0 not in shape:
                shown[shape[axis]] += 1
    if shown:
        return shown.most_common(1)[0][0]
    # The JSON, a published model and the caller count in this order.
    is_published = hints.get("is_published")
    stated = hints.get("num_heads") or shapes.family.guess_heads(config, hints)
    is_asked = known.num_heads == PUBLISHED
    if not stated and (is_published or is_asked):
        stated = _published_heads(config)
        if stated and not is_published:
            shapes.notes.append(
                f"{shapes.family.title} does not store the number of heads: "
                f"{stated} are assumed, as in the published model of this "
                "size. Pass `num_heads` if the model has another number."
            )
    return stated or (None if is_asked else known.num_heads)


def _published_heads(config) -> int | None:
    """Return the number of heads of the published models of a size, or None."""
    fields = ("width", "depth", "mlp_dim")
    found = {
        row.config.num_heads
        for row in VARIANTS.values()
        if all(getattr(row.config, f) == getattr(config, f) for f in fields)
    }
    return found.pop() if len(found) == 1 else None


# ------------------------------------------------------------------ positions


def _infer_positions(shapes, hints, known, config) -> dict:
    """Return the fields of the position embedding and of the image size.

    A position table has a row for each patch, and prefix rows before them. The
    number of rows alone does not determine the grid: 50 rows may be 7x7
    patches and a class token, or 5x10 patches. A size that the caller or the
    JSON states has priority, then a square grid. If neither fits, the size of
    the new model is tried.
    """
    hints = {**known.fields, **hints}
    wanted, source = known.image_size, known.source_image_size
    told = [source] if source else hints.get("image_sizes", [])
    shape = shapes.of(POSITION_TABLE)
    [name], _ = shapes.family.stored(POSITION_TABLE)
    if shape is None:
        return _without_table(shapes, hints, config, [*told, wanted])
    if len(shape) not in (2, 3, 4) or shape[-1] != config.width:
        raise ValueError(
            f"{name} has the shape {shape}; "
            f"(1, rows, {config.width}) was expected."
        )
    unit = config.patch_size * config.stem_stride
    # NaFlex stores the table as the grid of patches.
    is_grid = len(shape) == 4 or (len(shape) == 3 and shape[0] > 1)
    if is_grid and not source:
        told = [tuple(side * unit for side in shape[-3:-1])]
    rows, count = math.prod(shape[:-1]), config.num_prefix_tokens
    with_token, without_token = shapes.family.slots
    slots = with_token if config.use_class_token else without_token
    may_lack_slot = shapes.family.may_lack_slot
    if count > config.use_class_token:
        # Rows for all of these tokens, for none, or for the class token.
        slots, may_lack_slot = (count, 0, *slots[:1]), True
    may_lack_slot |= hints.get("use_prefix_positions") is False

    def fits(size, slot, may_have_border=False):
        if size is None:
            return False
        cells = [math.ceil(side / config.stem_stride) for side in size]
        if any(cell % config.patch_size for cell in cells):
            if not may_have_border:
                return False
        patches = math.prod(cell // config.patch_size for cell in cells)
        return patches == rows - slot > 0

    stated = [(size, slot) for size in told for slot in slots]
    choices = list(stated)
    if not source:
        usual = slots if may_lack_slot else slots[:1]
        squares = [
            ((math.isqrt(max(rows - slot, 0)) * unit,) * 2, slot)
            for slot in usual
        ]
        choices += [squares[0], (wanted, slots[0]), *squares[1:]]
    fitting = [row for row in choices if fits(*row, row in stated)]
    if not fitting:
        received = source or wanted
        raise ValueError(
            f"its {rows} positions are not a square grid after a class token; "
            "pass `source_image_size=` (height, width) of its images."
            f"{f' Received: {received}' if received else ''}"
        )
    size, slot = fitting[0]
    if fitting[0] not in stated and wanted not in (None, size):
        if any(fits(wanted, slot) for slot in slots):
            raise ValueError(
                f"its {rows} positions may be those of images of "
                f"{size[0]}x{size[1]} or {wanted[0]}x{wanted[1]} pixels; "
                "pass `source_image_size=`."
            )
    return {
        "image_size": size,
        # In the families of 2021, a class token without a row gets one of
        # zeros.
        "use_prefix_positions": (
            slot == count or not shapes.family.has_later_parts
        ),
    }


def _without_table(shapes, hints, config, sizes) -> dict:
    """Return the fields of positions that are computed, or of no table."""
    kind = hints.get("position_embedding", shapes.family.no_table)
    rotary = hints.get("rotary_positions", config.rotary_positions)
    if kind is None and (
        rotary != "none" or config.relative_positions != "none"
    ):
        kind = "none"
    layer_class = POSITION_EMBEDDINGS.get(kind)
    is_computed = layer_class is not None and layer_class.may_lack_table
    if not (is_computed or kind == "none"):
        advice = ""
        if shapes.family.has_architectures:
            advice = (
                " If its model has rotary positions instead, pass "
                "`architecture=` or `rotary_positions=`."
            )
        raise ValueError(
            f"it lacks {shapes.family.stored(POSITION_TABLE)[0][0]}.{advice}"
        )
    size = sizes[0]
    if size is None:
        raise ValueError(
            "it has no position table, which would show the size of its "
            "images; pass `image_size=`."
        )
    if is_computed and config.width % layer_class.width_divisor:
        raise ValueError(
            "sine-cosine positions need a width that "
            f"{layer_class.width_divisor} divides, not {config.width}."
        )
    return {
        "position_embedding": kind,
        "image_size": size,
    }


# ---------------------------------------------------------- the JSON of others


def find_hints(json: dict) -> dict[str, Any]:
    """Return the fields of ViTConfig that another library's JSON states.

    Outer values have priority over inner ones. `image_sizes` is a list: a file
    may state the image sizes of the model and of the model that it was
    fine-tuned from.

    Raises:
        ValueError: If it names an activation or a pooling that a
            VisionTransformer does not have.
    """
    found, unknown, waiting = {}, [], collections.deque([json])
    for _ in range(MAX_VALUES):
        if not waiting:
            break
        row = waiting.popleft()
        if isinstance(row, list):
            waiting.extend(row)
        if not isinstance(row, dict):
            continue
        waiting.extend(row.values())
        for field, keys, read in HINTS:
            for key in (key for key in keys.split() if key in row):
                hint = read(row[key])
                if hint is None:
                    is_name = key in STRICT and isinstance(row[key], str)
                    unknown += [f"{key}={row[key]!r}"] if is_name else []
                elif field == "image_sizes":
                    found.setdefault(field, []).append(hint)
                else:
                    found.setdefault(field, hint)
    if unknown:
        raise ValueError(
            f"its configuration has {', '.join(dict.fromkeys(unknown))}, which "
            "no model of this package has"
        )
    return found


def _number(value):
    return value if type(value) is int and 0 < value < 2**20 else None


def _size(value):
    """Return (height, width) of a number or a list, None for anything else."""
    sizes = [value, value] if type(value) is int else value
    if not isinstance(sizes, (list, tuple)) or len(sizes) not in (2, 3, 4):
        return None
    # (C, H, W) in timm's input_size, (H, W, C) in keras-hub's image_shape, and
    # (B, H, W, C) in Keras' own input layer.
    sizes = list(sizes)[1 if len(sizes) == 4 else 0 :]
    if not all(map(_number, sizes)):
        return None
    if len(sizes) == 3:
        # There may be more channels than pixels in a row.
        is_first = sizes[0] < sizes[2] or sizes[1] == sizes[2]
        sizes = sizes[1:] if is_first else sizes[:2]
    return tuple(sizes)


def _epsilon(value):
    good = isinstance(value, (int, float)) and 0 < value < 1
    return float(value) if good else None


def _one_of(known, **others):
    """Return a function that maps a name, or a synonym of it, to the name."""
    names = {**{name: name for name in known}, **others}
    return lambda value: names.get(value) if isinstance(value, str) else None


# Where these libraries say "tanh", they mean the function itself.
_read_activation = _one_of(
    (),
    elu="elu",
    gelu="exact",
    gelu_fast="tanh",
    gelu_new="tanh",
    gelu_python="exact",
    gelu_python_tanh="tanh",
    gelu_pytorch_tanh="tanh",
    gelu_tanh="tanh",
    quick_gelu="quick",
    relu="relu",
    silu="silu",
    swish="silu",
)
# Keys whose unknown values indicate an unsupported model. Unknown values of
# other keys are ignored.
STRICT = ("hidden_act", "act_layer", "global_pool")
# Fields of ViTConfig, their keys in the JSON of other libraries, and a function
# that reads a value; it returns None for an invalid value.
HINTS = (
    ("num_heads", "num_heads num_attention_heads", _number),
    (
        "image_sizes",
        "image_size img_size image image_shape input_size batch_shape "
        "batch_input_shape",
        _size,
    ),
    # In the files of this package.
    ("activation", "gelu", _one_of(ACTIVATIONS, erf="exact", swish="silu")),
    # Not "activation", which each layer of Keras has.
    ("activation", "hidden_act act_layer", _read_activation),
    (
        "layer_norm_epsilon",
        "layer_norm_epsilon layer_norm_eps rms_norm_eps",
        _epsilon,
    ),
    (
        "pooling",
        "pooling global_pool pool classifier",
        _one_of(
            POOLINGS, tok="token", gap="avg", unpooled="none", **{"": "none"}
        ),
    ),
    (
        "position_embedding",
        "position_embedding posemb pos_embed",
        _one_of(POSITION_EMBEDDINGS, learn="learned", sincos2d="sincos_2d"),
    ),
    ("stem_epsilons", "stem_epsilons", _one_of(STEM_EPSILONS)),
)
