"""Saving: save_checkpoint writes a model in the format of another library."""

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from keras_vit.layers.dtypes import as_float32
from keras_vit.models.config import ViTConfig
from keras_vit.models.tuning import merged_values
from keras_vit.models.vit import VisionTransformer, check_vision_transformer
from keras_vit.tables import pick
from keras_vit.weights.arrangement import join, stack, to_dialect
from keras_vit.weights.expressible import find_inexpressible
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.layouts import Dialect, Layout
from keras_vit.weights.source import POSITION_TABLE
from keras_vit.weights.stored_parts import parts_of, whole_shape
from keras_vit.weights.writers import Arrays, Writer

logger = logging.getLogger(__name__)


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
    writers = pick(WRITERS, layout, "layout")
    family = LAYOUTS[layout]
    _refuse_quantized(model)
    config = _stored_config(model.config, family)
    later = family.later_fields(config)
    reason = family.refuse(config) or find_inexpressible(
        config, later, family.later_values
    )
    if reason:
        raise ValueError(
            f"{family.title} cannot express this model: {reason}. "
            f"Received: layout={layout!r}"
        )
    path = pathlib.Path(path).expanduser()
    write = _pick_writer(path, layout, writers)
    is_file = write is not writers.get("")
    differences = tuple(_describe_differences(model.config, family, is_file))
    if differences and not is_file:
        raise ValueError(
            f"{family.title} cannot express this model: "
            f"{' '.join(differences)} "
            f"Received: layout={layout!r}"
        )
    dialect = _pick_dialect(model, layout, family, dialect)
    names = family
    if family.written_by is not None:
        names = LAYOUTS[family.written_by(config)]
    arrays = _arrays(model, names.of_model(config), config)
    arrays = join(stack(arrays, names.stacks), names.joins)
    for name, shape in names.adds(config).items():
        arrays[name] = functools.partial(np.zeros, shape, "float32")
    write(path, to_dialect(arrays, dialect), config)
    folder_notes = () if is_file else family.notes(config)
    notes = (*_notes(model.config, is_file), *folder_notes, *differences)
    for note in notes:
        logger.warning("%s: %s", path, note)
    return notes


def _refuse_quantized(model):
    modes = {layer.quantization_mode for layer in model._flatten_layers()}
    modes = sorted(mode for mode in modes if mode)
    if modes:
        raise ValueError(
            f"`model` is quantised to {' and '.join(modes)}, and a checkpoint "
            "has float32 weights: its readers would compute other outputs "
            "than this model. Pass the model that it was quantised from. "
            f"Received: model={model.name!r}"
        )


def _pick_writer(path, layout, writers) -> Writer:
    suffix = path.suffix.lower()
    # A folder may have a dot in its name.
    if "" in writers and (path.is_dir() or suffix not in FILE_ENDINGS):
        return writers[""]
    if suffix in writers and not path.is_dir():
        return writers[suffix]
    endings = " or ".join(
        f"a {ending} file" if ending else "a folder" for ending in writers
    )
    raise ValueError(
        f"`path` must be {endings} with layout={layout!r}. "
        f"Received: path={str(path)!r}"
    )


def _pick_dialect(model, layout, family, dialect) -> Dialect:
    """Return the dialect: required, requested, as read, or the usual one."""
    dialects = {"": Dialect(), **family.dialects}
    if family.dialect_of is not None:
        if dialect:
            raise ValueError(
                f"`dialect` cannot be chosen for layout={layout!r}. "
                f"Received: dialect={dialect!r}"
            )
        return family.dialect_of(model.config)
    if dialect is None:
        source = getattr(model, "checkpoint_dialect", "/").split("/")
        dialect = source[1] if source[0] == layout else ""
    return pick(dialects, dialect, "dialect")


def _stored_config(config, family) -> ViTConfig:
    """Return the configuration of the file, with the positions it stores."""
    changes = {}
    kind = config.position_embedding
    # Rotary and relative positions replace a table.
    others = {config.rotary_positions, config.relative_positions} - {"none"}
    if kind != family.no_table and not (kind == "none" and others):
        changes["position_embedding"] = "learned"
    # Rows and biases of zeros change nothing.
    later = family.later_fields(config)
    if "use_prefix_positions" not in later:
        changes["use_prefix_positions"] = True
    if "qkv_bias" not in later and config.qkv_bias == "none":
        changes["qkv_bias"] = "all"
    return dataclasses.replace(config, **changes)


def _arrays(model, family: Layout, config) -> Arrays:
    """Return functions that compute the arrays, by name in the file."""
    values = merged_values(model)
    if config.position_embedding == "learned":
        _add_positions(values, model, family, config)
    arrays = {}
    dropped = family.drops(config)
    for path, parts in parts_of(family, config).items():
        if path in dropped:
            _check_zero(values[path], path, family)
            continue
        for index, part in enumerate(parts):
            value = values.get(path) or _make_zeros(parts)
            pieces = (value, len(parts), index)
            arrays[part.name] = _maker(*pieces, part.form, config.num_heads)
    return arrays


def _check_zero(make, path, family):
    if make().any():
        raise ValueError(
            f"{family.title} cannot express this model: its class has no "
            f"{path}, and that of the model is not zero"
        )


def _make_zeros(parts):
    shape = whole_shape(parts)
    return lambda: np.zeros(shape, "float32")


def _maker(value, count, index, form, num_heads):
    def make():
        part = value()
        if count > 1:
            part = np.split(part, count, axis=-1)[index]
        return form.to_file(part, num_heads)

    return make


def _add_positions(values, model, family, config):
    """Add the position table of the family to the weights."""
    table = _position_table(model)
    rows = family.prefix_rows(config)
    missing = rows + np.prod(config.grid_size) - len(table)
    table = np.concatenate(
        [np.zeros((missing, config.width), table.dtype), table]
    )
    if model.config.use_class_token and family.slots[0][0] == 0:
        # This family adds the positions before it prepends the class token, so
        # the row of the token is added to the token itself.
        slot, table = table[0], table[1:]
        if slot.any():
            token = values["class_token/token"]
            values["class_token/token"] = lambda: token() + slot
    values[POSITION_TABLE] = lambda: table


def _position_table(model):
    """Return the position table (T, D) of the model, learned or computed."""
    config = model.config
    if config.position_embedding == "none":
        rows = np.prod(config.grid_size) + config.use_class_token
        return np.zeros((rows, config.width), "float32")
    layer = model.get_layer("position_embedding")
    return as_float32(layer.table(layer.grid_size))


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


def _describe_differences(config, family, is_file) -> Iterator[str]:
    """Yield differences between the readers' outputs and ours, with advice.

    A file alone leaves the choice of the class to its reader. A folder names a
    class, so its outputs must be right.
    """
    computed = family.computes(config)
    for field, describe in DIFFERENCES.items():
        ours = getattr(config, field)
        theirs = computed.get(field, getattr(family, field))
        # Hybrids are written to files alone.
        is_hybrid_file = is_file and config.stem_stages is not None
        matters = field != "stem_epsilons" or is_hybrid_file
        is_stated = field in family.stated_fields and not is_file
        if ours != theirs and matters and not is_stated:
            note = describe(ours, theirs, family.title)
            advise = family.remedies.get(field, lambda value: "")
            yield f"{note} {advise(ours)}".strip()


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
# Endings of files. A new folder cannot have one of them.
FILE_ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin")
# The writers of each family, by the ending of the path.
WRITERS = {
    name: layout.writers for name, layout in LAYOUTS.items() if layout.writers
}
