"""Writing a model as a checkpoint that others read."""

import dataclasses
import logging
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator

import keras
import numpy as np

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.tables import pick
from keras_vit.weights.containers import (
    write_json,
    write_npz,
    write_safetensors,
)
from keras_vit.weights.layouts import LAYOUTS, Layout, parts_of

logger = logging.getLogger(__name__)

BLOCK_NUMBER = re.compile(r"encoderblock_(\d+)/")


def save_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    layout: str = "official",
    spelling: str | None = None,
) -> tuple[str, ...]:
    """Write a model for the users of another library.

    The file takes its place when it is whole; until then `path` stays as it
    was. Weights are written as float32. Position embeddings that the family
    cannot compute are written as a table.

    Args:
        model: The model; it is not changed.
        path: A `.npz` file for "official" and "big_vision"; a `.safetensors`
            or `.npz` file or a folder for "timm"; a folder for "huggingface".
        layout: "official", "big_vision", "timm" or "huggingface".
        spelling: For "official", "linen" names the blocks as newer versions
            of Flax do; for "big_vision", "scan" stacks them. "" is the usual
            spelling. Default is that of the file of this family that the
            model was loaded from, else the usual one.

    Returns:
        What a reader must know because the file cannot say it, such as
        another GELU; it is logged as well.

    Raises:
        ValueError: If the family cannot express the model, with the reason.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "`model` must be a VisionTransformer. "
            f"Received: {type(model).__name__}"
        )
    written = {k: row for k, row in LAYOUTS.items() if row.refuse is not None}
    family = pick(written, layout, "layout")
    if is_quantized(model):
        raise ValueError(
            "A quantised model has no float weights to write; use the model "
            f"it was quantised from. Received: model={model.name!r}"
        )
    reason = family.refuse(model.config)
    if reason:
        raise ValueError(
            f"{family.title} cannot express this model: {reason}. "
            f"Received: layout={layout!r}"
        )
    path = pathlib.Path(path).expanduser()
    write = _writer(path, layout)
    config = _stored_config(model.config, family)
    spelling = _pick_spelling(model, layout, family, spelling)
    arrays = _spelled(_arrays(model, family, config), family, spelling)
    write(path, arrays, config)
    notes = tuple(_notes(model.config, family, layout))
    for note in notes:
        logger.warning("%s: %s", path, note)
    return notes


def _pick_spelling(model, layout, family, spelling):
    """Return the spelling to write: forced, asked for, as read, or usual."""
    if family.spelling_of is not None:
        if spelling:
            raise ValueError(
                f"`spelling` is not free in layout={layout!r}. "
                f"Received: spelling={spelling!r}"
            )
        return family.spelling_of(model.config)
    if spelling is None:
        source = getattr(model, "checkpoint_spelling", "/").split("/")
        return source[1] if source[0] == layout else ""
    pick({"": (), **family.spellings}, spelling, "spelling")
    return spelling


def _stored_config(config, family) -> ViTConfig:
    """Return `config` as the file holds it: with a table, or with none."""
    if config.position_embedding == family.no_table == "sincos_2d":
        return config
    return dataclasses.replace(config, position_embedding="learned")


def _arrays(model, family: Layout, config) -> dict:
    """Return functions that make the arrays, by name in the file."""
    values = {
        weight.path: lambda weight=weight: _to_numpy(weight)
        for weight in model.weights
    }
    if config.position_embedding == "learned":
        _add_positions(values, model, family)
    arrays = {}
    for path, parts in parts_of(family, config).items():
        for index, part in enumerate(parts):
            pieces = (values[path], len(parts), index)
            arrays[part.name] = _maker(*pieces, part.form, config.num_heads)
    return arrays


def _maker(value, count, index, form, num_heads):
    def make():
        part = value()
        if count > 1:
            part = np.split(part, count, axis=-1)[index]
        return form.to_file(part, num_heads)

    return make


def _add_positions(values, model, family):
    """Put the table, as the family has it, among the weights."""
    table = _position_table(model)
    if model.config.use_class_token and family.slots[0][0] == 0:
        # This family adds the positions before it puts the class token in:
        # what the token's row says goes into the token.
        slot, table = table[0], table[1:]
        if slot.any():
            token = values["class_token/token"]
            values["class_token/token"] = lambda: token() + slot
    values["position_embedding/embedding"] = lambda: table


def _position_table(model):
    """Return the rows (T, D) that the model adds, learned or computed."""
    config = model.config
    if config.position_embedding == "none":
        rows = np.prod(config.grid_size) + config.use_class_token
        return np.zeros((rows, config.width), "float32")
    layer = model.get_layer("position_embedding")
    return _to_numpy(layer.table(layer.grid_size))


def _to_numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def _spelled(arrays, family, spelling) -> dict:
    """Return `arrays` with the names, and in the stacks, of a spelling."""
    if spelling == "scan":
        return _stacked(arrays)
    spelled = {}
    for name, make in arrays.items():
        for pattern, replacement in family.spellings.get(spelling, ()):
            name = re.sub(pattern, replacement, name)
        spelled[name] = make
    return spelled


def _stacked(arrays) -> dict:
    stacks = {}
    for name, make in arrays.items():
        stacks.setdefault(BLOCK_NUMBER.sub("encoderblock/", name), []).append(
            make
        )

    def stack(makes):
        return lambda: np.stack([make() for make in makes])

    return {
        name: stack(makes) if "/encoderblock/" in name else makes[0]
        for name, makes in stacks.items()
    }


def _made(arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and arrays, one at a time and in the order of names."""
    for name in sorted(arrays):
        yield name, arrays[name]()


def _own_config(config) -> dict:
    """Return what names and shapes do not say of a model."""
    return {
        "num_heads": config.num_heads,
        "image_size": list(config.image_size),
        "gelu": config.gelu,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "pooling": config.pooling,
        "position_embedding": config.position_embedding,
        "stem_epsilons": config.stem_epsilons,
    }


def _writer(path, layout):
    writers = WRITERS[layout]
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


def _write_npz(prefix=""):
    def write(path, arrays, config):
        named = ((prefix + name, array) for name, array in _made(arrays))
        write_npz(path, named, _own_config(config))

    return write


def _write_safetensors(path, arrays, config):
    shapes = {name: make().shape for name, make in arrays.items()}
    write_safetensors(path, _made(arrays), shapes, _own_config(config))


def _write_folder(make_jsons):
    """Return a writer of a folder: weights and what lies beside them."""

    def write(path, arrays, config):
        if path.exists() and not path.is_dir():
            raise ValueError(f"`path` must be a folder. Received: {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # All files are complete before the first takes its place.
        draft = pathlib.Path(
            tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
        )
        try:
            _write_safetensors(draft / "model.safetensors", arrays, config)
            for name, value in make_jsons(config).items():
                write_json(draft / name, value)
            path.mkdir(exist_ok=True)
            for file in sorted(draft.iterdir()):
                os.replace(file, path / file.name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    return write


def _huggingface_jsons(config) -> dict[str, dict]:
    height, width = config.image_size
    labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
    model = {
        "architectures": [
            "ViTForImageClassification" if config.num_classes else "ViTModel"
        ],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu" if config.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.attention_dropout_rate,
        "initializer_range": 0.02,
        "encoder_stride": config.patch_size,
        "torch_dtype": "float32",
    }
    if config.num_classes:
        model["id2label"] = labels
        model["label2id"] = {label: int(i) for i, label in labels.items()}
    if config.representation_size:
        model["pooler_output_size"] = config.representation_size
        model["pooler_act"] = "tanh"
    # Its images are pixels over 255, here from -1 to 1 as well.
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * config.channels,
        "image_std": [0.5] * config.channels,
    }
    return {"config.json": model, "preprocessor_config.json": processor}


def _timm_jsons(config) -> dict[str, dict]:
    if config.stem_stages is not None:
        raise ValueError(
            "timm has no configuration file for a hybrid; write it to a "
            "`.safetensors` file"
        )
    size = [config.channels, *config.image_size]
    pool = {"none": ""}.get(config.pooling, config.pooling)
    arguments = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_dim, config.width),
        "class_token": config.use_class_token,
        "global_pool": pool,
        "fc_norm": config.use_pooling_norm,
        "act_layer": "gelu" if config.gelu == "exact" else "gelu_tanh",
    }
    model = {
        # Any plain ViT of timm: the arguments say which one it is.
        "architecture": "vit_base_patch16_224",
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": size,
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    return {"config.json": model}


def _ratio(mlp_dim, width):
    """Return the ratio whose product with the width timm rounds down right."""
    ratio = mlp_dim / width
    exact = int(width * ratio) == mlp_dim
    return ratio if exact else math.nextafter(ratio, math.inf)


def _notes(config, family, layout) -> Iterator[str]:
    """Yield what the reader of a file must know and cannot see."""
    if config.num_classes and config.classifier_activation:
        yield (
            f"the model ends in {config.classifier_activation}; the file holds "
            "no activation, and its readers answer with logits"
        )
    if layout == "huggingface":
        return  # config.json says all of it.
    if config.gelu != family.gelu:
        mend = " Pass act_layer='gelu_tanh' there." if layout == "timm" else ""
        yield (
            f"the model computes the {config.gelu} GELU and {family.title} the "
            f"{family.gelu} one; answers differ by about 2e-4.{mend}"
        )
    if config.stem_stages is not None and (
        config.stem_epsilons != family.stem_epsilons
    ):
        yield (
            f"the stem computes with the epsilons of {config.stem_epsilons} "
            f"and {family.title} with its own; answers differ by about 2e-4"
        )
    if config.layer_norm_epsilon != family.layer_norm_epsilon:
        yield (
            f"the model has layer_norm_epsilon={config.layer_norm_epsilon:g} "
            f"and {family.title} {family.layer_norm_epsilon:g}; answers differ "
            "slightly"
        )


FILE_ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin")
# What each layout can be written as: the ending of the path and how.
WRITERS = {
    "official": {".npz": _write_npz()},
    "big_vision": {".npz": _write_npz(prefix="params/")},
    "timm": {
        ".safetensors": _write_safetensors,
        ".npz": _write_npz(),
        "": _write_folder(_timm_jsons),
    },
    "huggingface": {"": _write_folder(_huggingface_jsons)},
}
