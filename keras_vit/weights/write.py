"""Writing checkpoints: save_checkpoint writes a model for another library.

A model is written if the family would read it back: `Family.read` must return
its configuration for the JSON and the shapes that are about to be written.
"""

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_vit.files import draft_folder
from keras_vit.layers.base import as_float32, refuse_quantized
from keras_vit.models.dense import DensePredictor
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
    Dialect,
    effective_fields,
    rename,
)
from keras_vit.weights.families.huggingface_dense import to_file, write_head
from keras_vit.weights.families.inference import POSITION_TABLE, Shapes
from keras_vit.weights.images import BESIDE

logger = logging.getLogger(__name__)


class Array(NamedTuple):
    """An array to write, computed in its turn: never are all in memory."""

    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


# Endings of entries of layers that change nothing of what a model answers.
ONLY_TRAINING = (
    *("rate", "_regularizer", "_constraint", "_initializer", "momentum"),
    *("use_remat", "seed", "trainable"),
)


def check_unedited(model: VisionTransformer | DensePredictor):
    """Raise a ValueError if a file of the configuration were another model."""

    def find(edits, path=""):
        for layer, entries in edits.items():
            for name, value in entries.items():
                if name == "edits":
                    yield from find(value, f"{path}{layer}/")
                elif not name.endswith(ONLY_TRAINING):
                    yield f"{path}{layer}.{name}"

    if found := sorted(find(model.get_config().get("edits", {}))):
        raise ValueError(
            "`model` must compute what its `config` says; a file of another "
            "library does not hold what was set on layers. Set it by the "
            "configuration, or save a .keras file. "
            f"Received: a model with other values of {', '.join(found)}"
        )


def save_checkpoint(
    model: VisionTransformer | DensePredictor,
    path: str | os.PathLike,
    layout: str = "official",
    dialect: str | None = None,
) -> tuple[str, ...]:
    """Write a model in the format of another library.

    The file replaces `path` only when it is complete. The weights are written
    in float32 and include LoRA updates. Position embeddings that the family
    cannot compute are written as a table.

    Args:
        model: The model; it is not changed. A DensePredictor is written for
            DPT or Depth Anything of "huggingface", with its class names.
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
        ValueError: If the model is quantised, layers were edited so that they
            compute something else than its `config` says, or the family cannot
            express it. The message states the reason. A folder names a class,
            so its epsilon must be that of the model.
    """
    head = model.head if isinstance(model, DensePredictor) else None
    if head is None:
        check_vision_transformer(model)
    endings = pick(WRITERS, layout, "layout")
    if head is not None and layout != "huggingface":
        raise ValueError(
            "`layout` must be 'huggingface' for a DensePredictor. "
            f"Received: layout={layout!r}"
        )
    advice = "pass the float32 model that it was quantised from"
    refuse_quantized(model, advice)
    check_unedited(model)
    path, family = pathlib.Path(path).expanduser(), LAYOUTS[layout]
    ending = path.suffix.lower()
    # A folder may have a dot in its name.
    if "" in endings and (path.is_dir() or ending not in FILE_ENDINGS):
        ending = ""
    if ending not in endings or (ending and path.is_dir()):
        known = (f"a {e} file" if e else "a folder" for e in endings)
        raise ValueError(
            f"`path` must be {' or '.join(known)} with layout={layout!r}. "
            f"Received: path={str(path)!r}"
        )
    # The file stores positions as a table, unless rotary or relative ones
    # replace it; rows and biases of zeros change nothing.
    config, kept, changes = model.config, family.keeps(model.config), {}
    others = {config.rotary_positions, config.relative_positions} - {"none"}
    replaced = others if config.position_embedding == "none" else ()
    if config.position_embedding != family.no_table and not replaced:
        changes["position_embedding"] = "learned"
    if "use_prefix_positions" not in kept:
        changes["use_prefix_positions"] = True
    if "qkv_bias" not in kept and config.qkv_bias == "none":
        changes["qkv_bias"] = "all"
    if head is not None:
        # The encoders have a norm, whether the head reads it or not.
        changes["use_final_norm"] = True
    config = dataclasses.replace(config, **changes)
    # The settings that names and shapes do not determine.
    about = {
        "num_heads": config.num_heads,
        "image_size": list(config.image_size),
        "gelu": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "pooling": config.pooling,
        "position_embedding": config.position_embedding,
        "stem_epsilons": config.stem_epsilons,
        "preprocessing": dataclasses.asdict(config.preprocessing),
    }
    try:
        written = family.write(config)
        parts = written.names.names(config)
        if ending:  # What a folder has in a file of its own.
            about = {**written.files.get("config.json", {}), **about}
        notes = _check_readable(written, parts, config, about, not ending)
        if not ending and not written.files:
            raise ValueError(
                "it has no configuration file for hybrids; write the model to "
                "a `.safetensors` file"
            )
        values = merged_values(model)
        for dropped in written.drops:
            if dropped in values and values[dropped]().any():
                raise ValueError(
                    f"its class has no {dropped}, and that of the model is "
                    "not zero"
                )
        if head is not None:
            shapes = {row.path: tuple(row.shape) for row in model.weights}
            written, names, zeros = write_head(
                written, model.config, head, shapes
            )
            values.setdefault(
                "encoder_norm/gamma",
                lambda: np.ones(config.width, "float32"),
            )
    except ValueError as error:
        raise ValueError(
            f"{family.title} cannot express this model: "
            f"{str(error).rstrip('.')}. Received: layout={layout!r}"
        ) from error
    dialect = _pick_dialect(model, layout, family, written.dialect, dialect)
    arrays = _arrays(model, values, written, parts, dialect, config)
    arrays = {endings[ending] + name: row for name, row in arrays.items()}
    if head is not None:
        arrays |= {
            name: Array(
                to_file(np.broadcast_to(np.float32(0), shapes[path])).shape,
                lambda value=values[path]: to_file(value()),
            )
            for path, name in names.items()
        }
        arrays |= _zeros(zeros)
    made = ((name, arrays[name].make()) for name in sorted(arrays))
    shapes = {name: row.shape for name, row in arrays.items()}
    if ending == ".npz":
        write_npz(path, made, about)
    elif ending:
        write_safetensors(path, made, shapes, about)
    else:
        _write_folder(path, made, shapes, about, written.files)
        notes = [*written.notes, *notes]
    for note in notes:
        logger.warning("%s: %s", path, note)
    return tuple(notes)


def _pick_dialect(model, layout, family, required, dialect) -> Dialect:
    """Return the dialect: required, requested, as read, or the usual one."""
    if required is not None and not dialect:
        return required
    if dialect is None:
        source = getattr(model, "checkpoint_dialect", "/").split("/")
        dialect = source[1] if source[0] == layout else ""
    dialects = {"": Dialect(), **family.dialects} if required is None else ()
    if dialect in dialects:
        return dialects[dialect]
    known = ", ".join(map(repr, dialects)) or "left out"
    raise ValueError(
        f"`dialect` must be {'one of ' * bool(dialects)}{known} with "
        f"layout={layout!r}. Received: dialect={dialect!r}"
    )


# ------------------------------------------- what the readers would compute


def _check_readable(written, parts, config, about, is_folder) -> list[str]:
    """Return notes on what readers of a file compute in another way.

    Raises:
        ValueError: If readers would compute another model.
    """
    family = written.names
    by_name = {
        part.name: part.shape_in_file(config.num_heads)
        for row in parts.values()
        for part in row
    }
    shapes = Shapes(family, by_name, by_name.keys())
    found = family.read(written.files.get("config.json", about), shapes)
    if shapes.questions:
        raise ValueError(" ".join(shapes.questions))
    written_fields, read_fields = (
        effective_fields(row, config) for row in (config, found)
    )
    different = [
        f"{field}={value!r}, which would be read as {read_fields[field]!r}"
        for field, value in written_fields.items()
        if value != read_fields[field] and field not in UNSTORED
    ]
    if different:
        raise ValueError(f"the model has {'; '.join(different)}")
    notes = []
    for field, advice in DIFFERENCES.items():
        ours = getattr(config, field)
        theirs = written.computes.get(field, getattr(family, field))
        if is_folder:
            theirs = getattr(found, field)
        if ours != theirs and field in written_fields:
            advice = advice.format(theirs) or written.advice.get(field, "")
            notes.append(
                f"the model has {field}={ours!r} and {family.title} "
                f"{theirs!r}, so outputs differ. {advice}".rstrip()
            )
    if notes and is_folder:
        raise ValueError(" ".join(notes))
    if config.num_classes and config.classifier_activation:
        notes.append(
            f"the model ends in {config.classifier_activation}; the file has "
            "no activation, so its readers return logits"
        )
    settings = config.preprocessing
    if not is_folder and settings.normalization != "vit":
        notes.append(
            "only this package reads in the file that images are normalised "
            f"by {settings.normalization!r}: mean {settings.mean}, deviation "
            f"{settings.deviation}"
        )
    return notes


# Fields that a file cannot record, and what to do about a difference.
DIFFERENCES = {
    "activation": "",
    "stem_epsilons": "",
    "layer_norm_epsilon": "If this is acceptable, write "
    "model.with_layer_norm_epsilon({0:g}) (--layer_norm_epsilon={0:g} of "
    "keras_vit.convert).",
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
    "class_names",
    "probabilities",
    "head_bias",
    "dropout_rate",
    "attention_dropout_rate",
    "stochastic_depth_rate",
    "patch_dropout_rate",
    "use_remat",
)
# Endings of files. A new folder cannot have one of them.
FILE_ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin")
# The prefix of names by the endings of files, "" for folders, of each family.
WRITERS = {
    key: family.endings for key, family in LAYOUTS.items() if family.endings
}


# --------------------------------------------------------------------- arrays


def _arrays(model, values, written, parts, dialect, config) -> dict[str, Array]:
    """Return the arrays to write, by name in the file without its prefix."""
    arrays, values = {}, dict(values)
    if config.position_embedding == "learned":
        values |= _positions(model, values, written, config)
        table = values[POSITION_TABLE]()
        [part] = parts[POSITION_TABLE]
        parts = {**parts, POSITION_TABLE: [part._replace(shape=table.shape)]}
    for path, row in parts.items():
        for index, part in enumerate(() if path in written.drops else row):
            # A weight that the model lacks is zero.
            value = values.get(
                path, functools.partial(np.zeros, part.shape, "float32")
            )
            count = len(row) if path in values else 1
            arrays[part.name] = Array(
                part.shape_in_file(config.num_heads),
                functools.partial(
                    _make, value, part.form, count, index, config.num_heads
                ),
            )
    for name, axis in written.names.stacks.items():
        rows = [arrays.pop(n) for n in list(arrays) if n.startswith(name)]
        if rows:
            arrays[name] = _stack(rows, axis)
    for name, rows in written.names.joins.items():
        if rows[0] in arrays:
            rows = [arrays.pop(row) for row in rows]
            arrays[name] = Array(
                (sum(row.shape[0] for row in rows), *rows[0].shape[1:]),
                lambda rows=rows: np.concatenate([r.make() for r in rows]),
            )
    arrays |= _zeros(written.adds)
    arrays = {rename(n, dialect.changes): row for n, row in arrays.items()}
    blocks = {}
    for name in list(arrays) if dialect.stack else ():
        stacked = rename(name, (dialect.stack,))
        if stacked != name:
            blocks.setdefault(stacked, []).append(arrays.pop(name))
    return arrays | {name: _stack(rows, 0) for name, rows in blocks.items()}


def _zeros(shapes) -> dict[str, Array]:
    """Return arrays of zeros of these shapes."""
    return {
        name: Array(shape, functools.partial(np.zeros, shape, "float32"))
        for name, shape in shapes.items()
    }


def _make(value, form, count, index, num_heads) -> np.ndarray:
    """Compute an array, one of `count` side by side in the weight."""
    array = value()
    array = np.split(array, count, axis=-1)[index] if count > 1 else array
    return form.to_file(array, num_heads)


def _stack(rows, axis) -> Array:
    shape = list(rows[0].shape)
    shape.insert(axis, len(rows))
    return Array(
        tuple(shape), lambda: np.stack([row.make() for row in rows], axis)
    )


def _positions(model, values, written, config) -> dict[str, Callable]:
    """Return the position table of the family, and a changed class token."""
    patches = int(np.prod(config.grid_size))
    if model.config.position_embedding == "none":
        rows = patches + model.config.use_class_token
        table = np.zeros((rows, config.width), "float32")
    else:
        layer = model.get_layer("position_embedding")
        table = as_float32(layer.table(layer.grid_size))  # (T, D)
    prefix_rows = written.prefix_rows
    if prefix_rows is None:
        prefix_rows = config.use_prefix_positions * config.num_prefix_tokens
    missing = prefix_rows + patches - len(table)
    no_rows = np.zeros((missing, config.width), table.dtype)
    table, changed = np.concatenate([no_rows, table]), {}
    if model.config.use_class_token and written.names.slots[0][0] == 0:
        # This family adds the positions before it prepends the class token, so
        # the row of the token is added to the token itself.
        slot, table = table[0], table[1:]
        if slot.any():
            token = values["class_token/token"]
            changed["class_token/token"] = lambda: token() + slot
    return {**changed, POSITION_TABLE: lambda: table}


# ---------------------------------------------------------- files and folders


def _write_folder(path, made, shapes, about, jsons: dict[str, dict]):
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
    # In a folder, the JSON files state it, for every library.
    about = {key: row for key, row in about.items() if key != "preprocessing"}
    # All files are complete before the first one replaces an old file.
    with draft_folder(path) as draft:
        write_safetensors(draft / WEIGHTS, made, shapes, about)
        for name, value in jsons.items():
            write_json(draft / name, value)
        path.mkdir(exist_ok=True)
        for file in sorted(draft.iterdir()):
            os.replace(file, path / file.name)
