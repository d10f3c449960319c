"""Writing checkpoints: save_checkpoint writes a model for another library.

A model is written if the family would read it back: `Family.read` must return
its configuration for the JSON and the shapes that are about to be written.
"""

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from keras_vit.files import draft_folder
from keras_vit.layers import ROTARY_POSITIONS
from keras_vit.layers.dtypes import as_float32
from keras_vit.models.config import ViTConfig
from keras_vit.models.tuning import merged_values
from keras_vit.models.vit import VisionTransformer, check_vision_transformer
from keras_vit.tables import pick
from keras_vit.weights.containers import (
    KERAS_HUB,
    WEIGHTS,
    write_json,
    write_npz,
    write_safetensors,
)
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.family import (
    LATER_FIELDS,
    POSITION_TABLE,
    Dialect,
    Family,
    rename,
)
from keras_vit.weights.families.inference import Shapes
from keras_vit.weights.images import BESIDE

logger = logging.getLogger(__name__)

# Name in the file -> function that computes the array. Arrays are computed one
# at a time, so they are never all in memory.
Arrays = dict[str, Callable[[], np.ndarray]]


def save_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    layout: str = "official",
    dialect: str | None = None,
) -> tuple[str, ...]:
    """Write a model in the format of another library.

    The file replaces `path` only when it is complete. The weights are written
    in float32 and include LoRA updates. Position embeddings that the family
    cannot compute are written as a table.

    Args:
        model: The model; it is not changed.
        path: A `.npz` file for "official" and "big_vision"; a `.safetensors`
            or `.npz` file or a folder for "timm"; a folder for "huggingface".
        layout: "official", "big_vision", "timm" or "huggingface".
        dialect: For "official", "linen" uses the block names of newer
            versions of Flax; for "big_vision", "scan" stacks the blocks. "" is
            the usual dialect. Default: the dialect of the file that the
            model was loaded from, if it is of this family; else the usual one.

    Returns:
        Notes on settings that the file cannot record, such as another GELU.
        The notes are also logged.

    Raises:
        ValueError: If the model is quantised, or the family cannot express
            it. The message states the reason. A folder names a class, so its
            epsilon must be that of the model.
    """
    check_vision_transformer(model)
    endings = pick(WRITERS, layout, "layout")
    modes = {layer.quantization_mode for layer in model._flatten_layers()}
    if modes := sorted(mode for mode in modes if mode):
        raise ValueError(
            f"`model` is quantised to {' and '.join(modes)}, and a checkpoint "
            "has float32 weights: its readers would compute other outputs "
            "than this model. Pass the model that it was quantised from. "
            f"Received: model={model.name!r}"
        )
    path = pathlib.Path(path).expanduser()
    family = LAYOUTS[layout]
    config = _stored_config(model.config, family)
    try:
        ending = _pick_ending(path, endings)
        jsons = family.write(config)
        names = family.written_by(config).of_model(config)
        notes = _check_readable(family, names, config, jsons, not ending)
        if not ending and not jsons:
            raise ValueError(
                "it has no configuration file for hybrids; write the model to "
                "a `.safetensors` file"
            )
        dialect = _pick_dialect(model, layout, family, dialect)
        arrays = _arrays(model, names, config)
    except _WrongArgument as error:
        raise ValueError(
            f"{error.args[0]} with layout={layout!r}. Received: {error.args[1]}"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{family.title} cannot express this model: "
            f"{str(error).rstrip('.')}. Received: layout={layout!r}"
        ) from error
    arrays = _to_dialect(arrays, dialect)
    prefix = endings[ending]
    arrays = {prefix + name: make for name, make in arrays.items()}
    if ending:
        _write_file(path, arrays, config)
    else:
        _write_folder(path, arrays, config, jsons)
    folder_notes = () if ending else family.notes(config)
    notes = (*_notes(model.config, ending), *folder_notes, *notes)
    for note in notes:
        logger.warning("%s: %s", path, note)
    return notes


class _WrongArgument(Exception):
    """What an argument must be, and the argument with its value."""


def _pick_ending(path, endings) -> str:
    """Return the ending of a file, "" for a folder."""
    suffix = path.suffix.lower()
    # A folder may have a dot in its name.
    if "" in endings and (path.is_dir() or suffix not in FILE_ENDINGS):
        return ""
    if suffix in endings and not path.is_dir():
        return suffix
    known = " or ".join(
        f"a {ending} file" if ending else "a folder" for ending in endings
    )
    raise _WrongArgument(f"`path` must be {known}", f"path={str(path)!r}")


def _pick_dialect(model, layout, family, dialect) -> Dialect:
    """Return the dialect: required, requested, as read, or the usual one."""
    required = family.dialect_of(model.config)
    if required is not None:
        if dialect:
            raise _WrongArgument(
                "`dialect` cannot be chosen", f"dialect={dialect!r}"
            )
        return required
    if dialect is None:
        source = getattr(model, "checkpoint_dialect", "/").split("/")
        dialect = source[1] if source[0] == layout else ""
    dialects = {"": Dialect(), **family.dialects}
    if dialect not in dialects:
        known = ", ".join(map(repr, dialects))
        raise _WrongArgument(
            f"`dialect` must be one of {known}", f"dialect={dialect!r}"
        )
    return dialects[dialect]


# ------------------------------------------- what the readers would compute


def _stored_config(config, family: Family) -> ViTConfig:
    """Return the configuration of the file, with the positions it stores."""
    changes, known = {}, family.known_fields(config) or ()
    kind = config.position_embedding
    # Rotary and relative positions replace a table.
    others = {config.rotary_positions, config.relative_positions} - {"none"}
    if kind != family.no_table and not (kind == "none" and others):
        changes["position_embedding"] = "learned"
    # Rows and biases of zeros change nothing.
    if "use_prefix_positions" not in known:
        changes["use_prefix_positions"] = True
    if "qkv_bias" not in known and config.qkv_bias == "none":
        changes["qkv_bias"] = "all"
    return dataclasses.replace(config, **changes)


def _check_readable(family, names, config, jsons, is_folder) -> list[str]:
    """Return notes on what readers of a file compute in another way.

    Raises:
        ValueError: If readers would compute another model.
    """
    known = family.known_fields(config)
    for field in (*LATER_FIELDS, "use_pooling_norm", "representation_size"):
        value = getattr(config, field)
        if known is not None and field not in known:
            if value != getattr(ViTConfig, field):
                raise ValueError(f"it has no {field}={value!r}")
    shapes = Shapes(
        names,
        {
            part.name: part.shape_in_file(config.num_heads)
            for parts in names.names(config).values()
            for part in parts
        },
    )
    json = jsons.get("config.json", _own_json(config))
    found = names.read(json, shapes)
    if shapes.questions:
        raise ValueError(" ".join(shapes.questions))
    different = [
        f"{field}={getattr(config, field)!r}, which would be read as "
        f"{getattr(found, field)!r}"
        for field in _compared_fields(config)
        if _value(config, field) != _value(found, field)
    ]
    if different:
        raise ValueError(f"the model has {'; '.join(different)}")
    notes, computed = [], family.computes(config)
    for field, describe in DIFFERENCES.items():
        ours = getattr(config, field)
        theirs = computed.get(field, getattr(family, field))
        if is_folder:
            theirs = getattr(found, field)
        is_hybrid = config.stem_stages is not None
        if ours != theirs and (field != "stem_epsilons" or is_hybrid):
            note = describe(ours, theirs, family.title)
            notes.append(f"{note} {family.advise(field, ours)}".strip())
    if notes and is_folder:
        raise ValueError(" ".join(notes))
    return notes


def _compared_fields(config) -> Iterator[str]:
    """Yield the fields of ViTConfig that matter for the outputs of a file."""
    kind, pooling = config.rotary_positions, config.pooling
    rotary = ROTARY_POSITIONS.get(kind)
    is_whole = pooling == "none" and not config.representation_size
    skipped = {
        *UNSTORED,
        # Without a head, the features may be read anywhere.
        *(["pooling"] if is_whole and not config.num_classes else ()),
        *(() if pooling == "prefix" else ["pooling_indices"]),
        *(() if pooling.startswith("map") else ["pooling_heads"]),
    }
    if config.layer_scale_init is None:
        skipped.add("layer_scale_branches")
    if config.relative_positions == "none":
        skipped |= {"relative_hidden_dim", "use_shared_relative_positions"}
    if config.position_embedding == "none" or not config.num_prefix_tokens:
        skipped.add("use_prefix_positions")
    if config.num_heads == 1:
        skipped.add("qk_norm")  # That of a head is that of the width.
    for field in dataclasses.fields(config):
        is_rotary = field.name.startswith("rotary_") and field.name != (
            "rotary_positions"
        )
        if is_rotary and field.name not in getattr(rotary, "needs", ()):
            continue
        if field.name not in skipped:
            yield field.name


def _value(config, field):
    """Return a field as far as a file tells it, with its default."""
    value = getattr(config, field)
    if field == "layer_scale_init":
        return value is not None
    if field == "pooling_heads":
        return value or config.num_heads
    if field == "pooling_mlp_dim":
        return value or config.mlp_dim
    return value


def _notes(config, is_file) -> Iterator[str]:
    """Yield notes on settings that do not change the outputs of the weights."""
    settings = config.preprocessing
    if is_file and settings.normalization != "vit":
        yield (
            "only this package reads in the file that images are normalised "
            f"by {settings.normalization!r}: mean {settings.mean}, deviation "
            f"{settings.deviation}"
        )
    if config.num_classes and config.classifier_activation:
        yield (
            f"the model ends in {config.classifier_activation}; the file has "
            "no activation, so its readers return logits"
        )


def _amount(ours, theirs):
    return " by about 2e-4" if {ours, theirs} == {"tanh", "exact"} else ""


# Fields that a file cannot record, and their effect on the outputs.
DIFFERENCES = {
    "activation": lambda ours, theirs, title: (
        f"the model has activation={ours!r} and {title} {theirs!r}; "
        f"outputs differ{_amount(ours, theirs)}."
    ),
    "stem_epsilons": lambda ours, theirs, title: (
        f"the stem computes with the epsilons of {ours} and {title} with its "
        "own; outputs differ by about 2e-4."
    ),
    "layer_norm_epsilon": lambda ours, theirs, title: (
        f"the model has layer_norm_epsilon={ours:g} and {title} {theirs:g}; "
        f"outputs differ slightly. If this is acceptable, write "
        f"model.with_layer_norm_epsilon({theirs:g})"
        f" (--layer_norm_epsilon={theirs:g} of keras_vit.convert)."
    ),
}
# Fields that change nothing about the outputs of the weights, or that only
# their own notes tell.
UNSTORED = (
    *(name for name in DIFFERENCES if name != "activation"),
    "preprocessing",
    "position_resize",
    "use_dynamic_image_size",
    "ignore_border",
    "classifier_activation",
    "head_bias",
    "dropout_rate",
    "attention_dropout_rate",
    "stochastic_depth_rate",
    "use_remat",
)
# Endings of files. A new folder cannot have one of them.
FILE_ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin")
# The prefix of names by the endings of files, "" for folders, of each family.
WRITERS = {
    key: family.endings for key, family in LAYOUTS.items() if family.endings
}


# --------------------------------------------------------------------- arrays


def _arrays(model, family: Family, config) -> Arrays:
    """Return functions that compute the arrays, by name in the family."""
    values = merged_values(model)
    if config.position_embedding == "learned":
        _add_positions(values, model, family, config)
    arrays, dropped = {}, family.drops(config)
    for path, parts in family.names(config).items():
        value = values.get(path)
        if path in dropped:
            if value().any():
                raise ValueError(
                    f"its class has no {path}, and that of the model is not "
                    "zero"
                )
            continue
        for index, part in enumerate(parts):
            arrays[part.name] = functools.partial(
                _make, value, part, len(parts), index, config.num_heads
            )
    for name, axis in family.stacks.items():
        makes = [arrays.pop(n) for n in list(arrays) if n.startswith(name)]
        if makes:
            arrays[name] = functools.partial(_stack, makes, axis)
    for name, rows in family.joins.items():
        if rows[0] in arrays:
            makes = [arrays.pop(row) for row in rows]
            arrays[name] = functools.partial(_concatenate, makes)
    for name, shape in family.adds(config).items():
        arrays[name] = functools.partial(np.zeros, shape, "float32")
    return arrays


def _make(value, part, count, index, num_heads) -> np.ndarray:
    """Compute an array, one of `count` side by side; zeros without a value."""
    if value is None:
        array = np.zeros(part.shape, "float32")
    else:
        array = value()
        array = np.split(array, count, axis=-1)[index] if count > 1 else array
    return part.form.to_file(array, num_heads)


def _stack(makes, axis) -> np.ndarray:
    return np.stack([make() for make in makes], axis)


def _concatenate(makes) -> np.ndarray:
    return np.concatenate([make() for make in makes])


def _to_dialect(arrays: Arrays, dialect: Dialect) -> Arrays:
    """Return arrays with the names and the stacks of a dialect."""
    arrays = {rename(n, dialect.changes): make for n, make in arrays.items()}
    if not dialect.stack:
        return arrays
    blocks = {}
    for name in list(arrays):
        stacked = rename(name, (dialect.stack,))
        if stacked != name:
            blocks.setdefault(stacked, []).append(arrays.pop(name))
    return arrays | {
        name: functools.partial(_stack, makes, 0)
        for name, makes in blocks.items()
    }


def _add_positions(values, model, family: Family, config):
    """Add the position table of the family to the weights."""
    patches = int(np.prod(config.grid_size))
    if model.config.position_embedding == "none":
        rows = patches + model.config.use_class_token
        table = np.zeros((rows, config.width), "float32")
    else:
        layer = model.get_layer("position_embedding")
        table = as_float32(layer.table(layer.grid_size))  # (T, D)
    missing = family.prefix_rows(config) + patches - len(table)
    no_rows = np.zeros((missing, config.width), table.dtype)
    table = np.concatenate([no_rows, table])
    if model.config.use_class_token and family.slots[0][0] == 0:
        # This family adds the positions before it prepends the class token, so
        # the row of the token is added to the token itself.
        slot, table = table[0], table[1:]
        if slot.any():
            token = values["class_token/token"]
            values["class_token/token"] = lambda: token() + slot
    values[POSITION_TABLE] = lambda: table


# ---------------------------------------------------------- files and folders


def _write_file(path, arrays: Arrays, config):
    # One array at a time, in the order of names.
    made = ((name, arrays[name]()) for name in sorted(arrays))
    json = _own_json(config)
    if path.suffix.lower() == ".npz":
        write_npz(path, made, json)
    else:
        shapes = {name: make().shape for name, make in arrays.items()}
        write_safetensors(path, made, shapes, json)


def _write_folder(path, arrays: Arrays, config, jsons: dict[str, dict]):
    """Write `model.safetensors` and JSON files."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"`path` must be a folder. Received: {path}")
    others = {KERAS_HUB, *BESIDE} - {WEIGHTS, *jsons}
    others = sorted(name for name in others if (path / name).exists())
    if others:
        raise ValueError(
            "`path` must be a new folder, or one of the same format: "
            f"{', '.join(others)} there would be read in place of new files. "
            f"Received: {path}"
        )
    # All files are complete before the first one replaces an old file.
    with draft_folder(path) as draft:
        _write_file(draft / WEIGHTS, arrays, config)
        for name, value in jsons.items():
            write_json(draft / name, value)
        path.mkdir(exist_ok=True)
        for file in sorted(draft.iterdir()):
            os.replace(file, path / file.name)


def _own_json(config) -> dict:
    """Return the settings that names and shapes do not determine."""
    return {
        "num_heads": config.num_heads,
        "image_size": list(config.image_size),
        "gelu": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "pooling": config.pooling,
        "position_embedding": config.position_embedding,
        "stem_epsilons": config.stem_epsilons,
        "preprocessing": dataclasses.asdict(config.preprocessing),
    }
