"""Finding what a file of weights contains: its family, model and arrays."""

import dataclasses
import math
import numbers
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from keras_vit.arguments import as_size, is_whole
from keras_vit.models.config import ViTConfig
from keras_vit.models.text import TextConfig
from keras_vit.preprocessing.description import Preprocessing
from keras_vit.weights.containers import FLOATS, File, errors_name
from keras_vit.weights.families import LAYOUTS, TEXT_LAYOUTS
from keras_vit.weights.families.family import (
    Family,
    Part,
    rename,
)
from keras_vit.weights.families.inference import (
    NOTHING_KNOWN,
    POSITION_TABLE,
    PUBLISHED,
    Known,
    Shapes,
)
from keras_vit.weights.images import add_conditioner, find_preprocessing


class Found(NamedTuple):
    """What a file contains; none of its arrays has been read."""

    file: File
    key: str  # Of its family in LAYOUTS.
    family: Family  # With the variants of the file.
    dialect: str  # Key of its dialect in the family, "" for the usual one.
    # The array of each name in the family, and the index in it: None for all of
    # it, a number if it contains the weights of all blocks, or slices, and a
    # number for an axis behind the first.
    places: dict[str, tuple[str, int | tuple | None]]
    config: ViTConfig | TextConfig
    parts: dict[str, list[Part]]  # The arrays of each weight of the model.
    num_prefix_rows: int  # Of its position table, before the patches.
    ignored: tuple[str, ...]  # Names that are not of weights of the model.
    # Assumptions, each with the argument that confirms or changes it.
    notes: tuple[str, ...]
    preprocessing: Preprocessing | None  # None if it is unknown.

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the model."""
        rows = self.parts.values()
        return sum(math.prod(part.shape) for row in rows for part in row)

    def stored(self, path: str) -> str:
        """Return the names in the file of a weight of the model."""
        names = (part.name for part in self.parts[path])
        found = [self.places[n][0] for n in names if n in self.places]
        return ", ".join(found) or path


def find(file: File, known: Known = NOTHING_KNOWN) -> Found:
    """Return which model a file contains, from its names and shapes.

    Raises:
        ValueError: If it is of no known family, or anything is missing, left
            over or of an unexpected shape; names all of it.
    """
    heads, architecture = known.num_heads, known.architecture
    is_count = is_whole(heads) and heads > 0
    if heads not in (None, PUBLISHED) and not is_count:
        raise ValueError(
            "`num_heads` must be a whole number of at least 1, or "
            f"{PUBLISHED!r}. Received: num_heads={heads!r}"
        )
    if architecture is not None and not isinstance(architecture, str):
        raise ValueError(
            "`architecture` must be a name, such as 'vit_base_patch16_224'. "
            f"Received: architecture={architecture!r}"
        )
    sizes = {}
    for name in ("image_size", "source_image_size"):
        size = getattr(known, name)
        if size is not None:
            is_side = isinstance(size, numbers.Number)
            sizes[name] = as_size((size, size) if is_side else size, name)
    known = known._replace(**sizes)
    with errors_name(file.path):
        found, shapes = _find(file, LAYOUTS, known)
        config = found.config
        settings = find_preprocessing(file, found.family, config, architecture)
        constants = {}
        for name in found.ignored:
            end = name.rpartition(".")[2]
            if end in CONSTANTS and end not in constants:
                constants[end] = file.read(name)
        config = found.family.settle(config, constants)
        # RADIO normalises its images itself.
        pair = [constants.get(f"norm_{part}") for part in ("mean", "std")]
        if found.key == "timm" and any(array is not None for array in pair):
            settings = add_conditioner(settings, *pair)
    table = shapes.of(POSITION_TABLE)
    rows = math.prod(table[:-1]) - math.prod(config.grid_size) if table else 0
    if settings is not None:
        config = dataclasses.replace(config, preprocessing=settings)
    return found._replace(
        config=config,
        num_prefix_rows=rows,
        notes=(*shapes.notes, *file.notes),
        preprocessing=settings,
    )


def find_text(file: File) -> Found:
    """Return which text tower a file contains, from its JSON and its names.

    Raises:
        ValueError: As `find` does, or if there is no JSON beside the file.
    """
    with errors_name(file.path):
        found, _ = _find(file, TEXT_LAYOUTS)
        scalars = {}
        for raw in file.arrays:
            if not re.search(r"(^|\.)logit_(scale|bias)$", raw):
                continue
            name, scalar = raw.rpartition(".")[2], file.read(raw)
            if scalar.size != 1:
                raise ValueError(f"{name} has the shape {scalar.shape}")
            number = float(scalar.reshape(()))
            scalars[name] = (
                math.exp(number) if name == "logit_scale" else number
            )
        config = dataclasses.replace(found.config, **scalars)
    return found._replace(config=config)


def _find(file, layouts, known=NOTHING_KNOWN) -> tuple[Found, Shapes]:
    """Return what names, shapes and the JSON show of a model of any kind."""
    key, wrapper, plain = recognise(file.path, file.arrays, layouts)
    family, dialect, places, ignored = _name(file, layouts[key], wrapper, plain)
    shapes = _shapes_of_places(file, family, places)
    try:
        config = family.read(file.json, shapes, known)
    except ValueError as error:
        foreign = foreign_parts(
            name for name in shapes.shapes if not family.knows(name)
        )
        if not foreign:
            raise
        text = f"{str(error).rstrip('.')}. It is a model with "
        raise ValueError(f"{text}{', '.join(foreign)}.") from error
    parts = family.names(config)
    ignored += _check_complete(file, places, config, parts, shapes, wrapper)
    found = Found(
        file,
        key,
        family,
        dialect,
        places,
        config,
        parts,
        num_prefix_rows=0,
        ignored=tuple(dict.fromkeys(ignored)),
        notes=tuple(file.notes),
        preprocessing=None,
    )
    return found, shapes


def _shapes_of_places(file, family, places) -> Shapes:
    """Return the shapes of the arrays of a family."""
    by_name = {
        name: file.arrays[raw].shape
        if index is None  # Else a slice of a stacked array.
        else np.broadcast_to(0, file.arrays[raw].shape)[index].shape
        for name, (raw, index) in places.items()
    }
    return Shapes(family, by_name, file.arrays.keys())


# ------------------------------------------------------------ family and names


def recognise(
    path: str,
    raw_names: Iterable[str],
    layouts: Mapping[str, Family] = LAYOUTS,
) -> tuple[str, str, dict[str, str]]:
    """Return the family of a file, the prefix of its names, and the names.

    The names are without the marks of compilers and trainers, and each maps to
    that in the file.

    Raises:
        ValueError: If the names fit no family.
    """
    plain, unread = {}, {}
    for raw in raw_names:
        if re.search(ADAPTERS, raw):
            raise ValueError(
                f"{path} holds adapters of PEFT ({raw}), such as LoRA, "
                "which are not merged with the weights. Call "
                "`merge_and_unload()` in PEFT, and save the model that it "
                "returns"
            )
        name = re.sub(MARKS, "", raw)
        if name in plain:
            raise ValueError(
                f"{name} is stored twice, as {plain[name]} and as {raw}"
            )
        plain[name] = raw
    for pattern, what in FOREIGN_FORMATS.items():
        for name in plain:
            if re.search(rf"(^|\.){pattern}", name):
                raise ValueError(
                    f"{path} is {what}, whose names are not read ({name})"
                )
    for key, family in layouts.items():
        allowed = re.compile(f"({'|'.join(map(re.escape, family.wrappers))})*")
        found = {
            name.removesuffix(ending)
            for name in plain
            for ending in family.recognise
            if name.endswith(ending)
        }
        # Of two networks in a file, the one that follows the other is used.
        for wrapper in sorted(
            found,
            key=lambda text: (bool(re.search(TRAINED, text)), len(text), text),
        ):
            unless = re.compile(re.escape(wrapper) + f"({family.unless})")
            if any(map(unless.match, plain)):
                continue
            if allowed.fullmatch(wrapper) or _is_everywhere(wrapper, plain):
                return key, wrapper, plain
            if wrapper.endswith("."):
                unread.setdefault(wrapper, family.title)
    titles = ", ".join(family.title for family in layouts.values())
    what = next(iter(layouts.values())).what
    text = (
        f"{path} is not a {what} of a known family ({titles}). The names of "
        f"its arrays are {', '.join([*plain][:8]) or 'none at all'}."
    )
    for wrapper, title in list(unread.items())[:1]:
        text += (
            f" Behind the prefix {wrapper!r} are names of {title}: save the "
            "arrays that have it without it, and without the others."
        )
    if foreign := foreign_parts(plain):
        text += f" They show {', '.join(foreign)}."
    raise ValueError(text)


def _is_everywhere(prefix, names):
    """Return whether there is nothing without a prefix, but for a loss."""
    return prefix.endswith(".") and all(
        name.startswith(prefix) or re.match(LOSSES, name) for name in names
    )


def _name(file, family, wrapper, plain) -> tuple[Family, str, dict, list[str]]:
    """Name the arrays of the model as its family does.

    Returns the family with the variants of the file, the dialect, and the
    places, as in `Found`, and the names in the file of all other arrays.
    """
    inside, ignored = {}, []
    has_trunk = wrapper.endswith("trunk.")
    # OpenCLIP stores the head of a tower of timm beside it.
    beside = wrapper.removesuffix("trunk.") + "head."
    others = next((row for part, row in OTHERS.items() if part in wrapper), "")
    for name, raw in plain.items():
        if has_trunk and name.startswith(beside):
            inside[f"trunk_head.{name.removeprefix(beside)}"] = raw
            continue
        is_outside = not name.startswith(wrapper) and (
            # The training state is stored beside the parameters.
            wrapper.endswith("/") or re.match(family.ignore, name)
        )
        is_other = others and re.match(others, name)
        if is_outside or is_other or re.match(LOSSES, name):
            ignored.append(raw)
            continue
        short = name.removeprefix(wrapper)
        if short in inside:
            raise ValueError(f"{short} is stored twice, once behind {wrapper}")
        inside[short] = raw

    shapes = {name: file.arrays[raw].shape for name, raw in inside.items()}
    prepared = family.prepare(shapes, file.json)
    for name, axis in family.stacks.items():
        # One array contains the weights of all blocks.
        if len(shapes.get(name, ())) > axis:
            del prepared[name]
            for i in range(shapes[name][axis]):
                index = (*[slice(None)] * axis, i)
                prepared[f"{name}.{i}"] = (name, index)
    dialects, dialect, places = family.dialects.items(), "", {}
    if any(index is not None for _, index in prepared.values()):
        dialect = next((key for key, row in dialects if row.stack), "")
    for name, (stored, index) in prepared.items():
        raw, new = inside[stored], rename(name, family.aliases)
        if re.match(family.ignore, new):
            ignored.append(raw)
            continue
        if new in places:
            raise ValueError(
                f"{new} is stored twice, as {places[new][0]} and as {raw}"
            )
        places[new] = (raw, index)
        if new != name:
            fitting = (
                key for key, row in dialects if rename(new, row.changes) == name
            )
            dialect = next(fitting, dialect)
    family = family.with_variants(
        row
        for row in family.variants
        if row.stated_by(file.json)
        or any(re.match(row.shown_by, name) for name in places)
    )
    if has_trunk:
        # The projection of OpenCLIP has no bias, unlike a head of timm.
        family.optional_bias = (*family.optional_bias, "predictions")
    return family, dialect, places, ignored


# The ends of names of arrays that are no weights, and are read.
CONSTANTS = ("norm_mean", "norm_std", "periods", "summary_idxs")
# What compilers and parallel training write into names, at any place.
MARKS = (
    r"(?<![^.])(_orig_mod|module|_fsdp_wrapped_module|"
    r"_checkpoint_wrapped_module)\."
)
LOSSES = r"(.*\.)?(\w*_?loss|criterion)\."
# Of two networks in a file, the one that follows the other is used: a prefix of
# the trained one, and by a prefix of the one that is read, those that are not.
TRAINED = r"(^|\.)(student|momentum_encoder|encoder)\."
OTHERS = {
    "base_encoder.": (  # MoCo v3.
        r"((model|state_dict)\.)*(momentum_encoder|predictor|"
        r"base_encoder\.head\.\d)\."
    ),
    "teacher.": r"((model|state_dict)\.)*student\.",
    "target_encoder.": r"((model|state_dict)\.)*(encoder|predictor)\.",
}
# Names of PEFT and of the same methods in other libraries.
ADAPTERS = (
    r"\.base_layer\.|\.modules_to_save\.|\blora_([AB]|up|down|mid)\b|"
    r"\blora_(embedding_[AB]|magnitude_vector)\b|\b(ia3_l|hada_w\d|lokr_w\d)\b|"
    r"^base_model\.model\."
)
# Pattern of a name that models of one library alone have, and its description.
FOREIGN_FORMATS = {
    r"encoder\.layers\.encoder_layer_0\.": "a ViT of torchvision",
    r"layers\.0\.(ffn\.layers\.0\.0|ln1)\.weight$": "a ViT of MMPretrain",
    r"to_patch_embedding\.": "a ViT of vit-pytorch",
    r"patch_embed\.position_embedding_table$": (
        "a ViT of Gemma 4, with norms on both sides of each branch and of the "
        "values"
    ),
    r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table$": (
        "a Swin Transformer"
    ),
    # Not that of a hybrid, patch_embed.backbone.
    r"(?<!patch_embed\.backbone\.)layer1\.0\.conv1\.weight$": "a ResNet",
}


# --------------------------------------------------------------- completeness


def _check_complete(file, places, config, parts, shapes, wrapper) -> list[str]:
    """Return the arrays that the family's own code does not read.

    Raises:
        ValueError: If arrays do not fit the model, or the file leaves
            questions open; the message names all of them.
    """
    family, by_name = shapes.family, shapes.shapes
    expected = {part.name: part for row in parts.values() for part in row}
    unread = re.compile(family.unread(config))
    extra = [name for name in places if name not in expected]
    unused = [
        name
        for name in extra
        if unread.match(name)
        # DINOv3 and Sapiens 2 without register tokens store none of them.
        or name.endswith(("register_tokens", "reg_token"))
        and 0 in by_name[name]
    ]
    left_over = [name for name in extra if name not in unused]
    missing = [name for name in expected if name not in places]
    if file.json.get("qkv_bias") is not True:
        # A model has either all biases of a group or none.
        held = {expected[n].optional for n in expected if n in places}
        missing = [
            name for name in missing if expected[name].optional in held | {""}
        ]
    mistyped, misshapen = [], []
    for path, row in parts.items():
        for part in (part for part in row if part.name in places):
            raw, shape = places[part.name][0], by_name[part.name]
            if file.arrays[raw].dtype not in FLOATS:
                text = f"{raw} {file.arrays[raw].dtype}, expected floats"
                mistyped.append(text)
            wanted = part.shape_in_file(config.num_heads)
            # For a time, Flax stored the scales of group norms as (1, 1, 1, C).
            is_norm = len(wanted) == 1 and set(shape[:-1]) == {1}
            # The rows of the table were already compared with the image size.
            if path != POSITION_TABLE and wanted != (
                shape[-1:] if is_norm else shape
            ):
                misshapen.append(f"{raw} {shape}, expected {wanted}")
    problems = {
        "missing": missing,
        "left over": dict.fromkeys(places[name][0] for name in left_over),
        "of another type": dict.fromkeys(mistyped),
        "of another shape": misshapen,
    }
    lines = [f"{key}: {', '.join(v)}." for key, v in problems.items() if v]
    if lines:
        foreign = foreign_parts(left_over)
        for path, row in parts.items():
            sizes = [math.prod(by_name.get(part.name, ())) for part in row]
            is_qkv = path.endswith("/attention/qkv/kernel") and len(row) == 3
            if is_qkv and 1 < sizes[1] < sizes[0]:
                raw = places[row[1].name][0]
                foreign.append(f"grouped queries ({raw})")
                break
        if foreign:
            lines.append(f"It is a model with {', '.join(foreign)}.")
        lines[0] = (
            f"is not a complete {family.what} of {family.title}. {lines[0]}"
        )
        if left_over and wrapper:
            lines.append(
                f"The model is read behind the prefix {wrapper!r}; save the "
                "arrays of the model alone, without the prefix."
            )
    path = f"{file.path}{'' if lines else ':'}"
    lines += shapes.questions
    if lines:
        raise ValueError(f"{path} {' '.join(lines)}")
    return [places[name][0] for name in unused]


# ------------------------------------------------------------ parts of others


def foreign_parts(names: Collection[str]) -> list[str]:
    """Return the foreign parts of a model, each with the name of an array.

    Example:
        >>> foreign_parts(["head.weight", "blocks.0.ls1.gamma"])
        ['LayerScale (blocks.0.ls1.gamma)']
    """
    names = list(names)
    firsts = (
        (what, next((n for n in names if re.search(pattern, n)), None))
        for pattern, what in FOREIGN_PARTS
    )
    return [f"{what} ({found})" for what, found in firsts if found]


# Pattern of a name, and the part of the model that the array belongs to.
FOREIGN_PARTS = (
    (r"dist_token|distillation_token|head_dist", "a distillation token"),
    (r"reg_token|register_token", "register tokens"),
    (r"\bls[12]\b|layer_scale|lambda_?[12]|gamma_[12]", "LayerScale"),
    (r"\b[qk]_norm\b|query_norm|key_norm", "a norm of queries and keys"),
    (r"norm_pre\b|ln_pre\b", "a norm before the first block"),
    (r"rel_pos_[hw]$", "attention in windows"),
    (r"rel_pos(?!_[hw]$)|relative_position", "relative positions"),
    (r"lambda_[qk][12]|sub_norm", "differential attention"),
    (r"\bin_proj\.|_out_proj\.|\battns\.\d", "parallel blocks"),
    (r"backbone\.(\d|conv1\.\d)", "a convolutional stem"),
    (r"^neck\.", "a neck of convolutions"),
    (r"rope|freqs", "rotary positions"),
    (r"w12|fc1_g|swiglu|weights_in", "a gated MLP"),
    (r"lora_", "LoRA adapters alone, without the model"),
    (r"trunk_head\.mlp", "a projection with an MLP"),
    (r"\b(merger|aligner)\.", "a projector for a language model"),
    (r"decoder", "a decoder of masked patches"),
    (r"txt|text", "a text tower"),
)
