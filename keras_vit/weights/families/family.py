"""Family: what all families of checkpoints have in common.

A family names its arrays after the layers of a VisionTransformer: `layers`
maps each layer to its name in the family, and `style` says how the family ends
the names of weights and in which form it stores them. A "#" in the path of a
layer stands for the number of a block, of a stage or of a unit.
"""

import concurrent.futures
import copy
import dataclasses
import functools
import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.layers import POSITION_EMBEDDINGS, ROTARY_POSITIONS
from keras_vit.models.config import ViTConfig
from keras_vit.models.text import TextConfig, TextTransformer
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.families.inference import (
    Shapes,
    infer,
)

NOTHING = r"(?!)"
NUMBER = r"_(\d\d+)(?=_|/|$)"  # Of a block, a stage or a unit in a path.
# Layers that a checkpoint for other classes does not contain.
HEAD_LAYERS = ("pre_logits", "predictions")
# Fields of ViTConfig that the ViT of 2021 has no use for. Most leave no trace
# in the weights, so a class that models are written for lists those it knows.
LATER_FIELDS = (
    "use_patch_bias",
    "use_patch_norm",
    "use_distillation_token",
    "num_registers",
    "position_placement",
    "use_prefix_positions",
    "use_embedding_norm",
    "rotary_positions",
    "relative_positions",
    "norm",
    "norm_placement",
    "layer_scale_init",
    "layer_scale_branches",
    "qkv_bias",
    "use_block_bias",
    "qk_norm",
    "use_attention_inner_norm",
    "use_mlp_inner_norm",
    "use_gated_mlp",
    "use_final_norm",
    "pooling_heads",
    "pooling_mlp_dim",
    "representation",
)
# What the code around a model of PyTorch writes before its names.
TORCH_WRAPPERS = (
    "model.",
    "state_dict.",
    "teacher.",
    "student.",
    "backbone.",
    "base_encoder.",
    "target_encoder.",
    "encoder.",
)


class Form(NamedTuple):
    """The form in which a file stores a weight; both functions return views."""

    # From the weight and the number of heads.
    to_file: Callable[[np.ndarray, int], np.ndarray]
    # From the stored array and the shape of the weight.
    to_ours: Callable[[np.ndarray, tuple], np.ndarray]


# The end of the path of a weight -> the end of its name in a file, and its
# form. The longest end that fits counts.
Style = dict[str, tuple[str, Form]]
# Pairs of a regular expression and its replacement, applied in this order.
Changes = tuple[tuple[str, str], ...]


class Part(NamedTuple):
    """One array of a file: a weight of the model, or one of several in it."""

    name: str  # In the family.
    form: Form
    shape: tuple  # In the model.
    # Not empty if it may be missing, with all others of the same text.
    optional: str = ""

    def shape_in_file(self, num_heads: int) -> tuple:
        """Return the shape of the array as it is stored."""
        empty = np.broadcast_to(np.float32(0), self.shape)
        return self.form.to_file(empty, num_heads).shape


class Variant(NamedTuple):
    """Other names of some layers, in a part of the files of a family."""

    shown_by: str  # Pattern of names that only such files have.
    # The layers and weights that differ; None for a layer that files lack.
    layers: dict[str, str | tuple[str, ...] | None] = {}
    style: Style = {}
    # Whether the file of a model is written so, and whether JSON states it.
    used_by: Callable[[ViTConfig], bool] = lambda config: False
    stated_by: Callable[[dict], bool] = lambda json: False


class Dialect(NamedTuple):
    """Another way in which a family writes the names of its arrays."""

    changes: Changes = ()  # Of the usual names.
    # Pattern of the numbered part of a name, and its replacement in the name
    # of an array for all blocks; None if each block has its own arrays.
    stack: tuple[str, str] | None = None


class Written(NamedTuple):
    """What a family writes of a model beside its arrays."""

    names: "Family"  # With the variants of the model.
    files: dict[str, dict] = {}  # The JSON files of a folder, by name.
    dialect: Dialect | None = None  # None for any of the family.
    # Rows before the patches in the position table, None for those of the
    # tokens that have a position.
    prefix_rows: int | None = None
    adds: dict[str, tuple] = {}  # Shapes of zeros, used in training only.
    drops: Collection[str] = ()  # Weights left out; they must be zero.
    # Fields that the code for a file computes, where not by its defaults, and
    # how to make it compute others.
    computes: dict = {}
    advice: dict[str, str] = {}
    notes: Iterable[str] = ()  # Differences that change no outputs.


class Family:
    """A family of checkpoints: the files that one library writes.

    `read` turns the JSON beside a file and the shapes in it into the
    configuration of its model, `names` a configuration into the names of the
    arrays, and `write` into what is written beside them. A model can be written
    if `read` returns its configuration for what `write` and `names` returned.
    """

    title: str  # Name of the family in messages.
    what = "ViT"  # What its files contain, in messages.
    layers: dict[str, str | tuple[str, ...]]  # Several are side by side.
    style: Style
    recognise: tuple[str, ...]  # Every file has at least one of these names.
    unless = NOTHING  # Pattern of names that no file of the family has.
    # Prefixes that all names may have, one behind the other in any order. In a
    # file with one that ends in "/", others belong to the training state.
    wrappers: tuple[str, ...] = ()
    aliases: Changes = ()  # Turn older and newer names into those of `layers`.
    ignore = NOTHING  # Pattern of names that are not of weights of the model.
    variants: tuple[Variant, ...] = ()
    dialects: dict[str, Dialect] = {}  # "" is the usual one.
    # Arrays that contain the weights of all blocks in every dialect, and the
    # axis of the block; and arrays that are written as one, side by side.
    stacks: dict[str, int] = {}
    joins: dict[str, tuple[str, ...]] = {}
    # Layers whose bias may be missing in all blocks; it is then zero.
    optional_bias: tuple[str, ...] = ()

    # What the code of the family computes if no JSON says otherwise.
    activation = "exact"
    layer_norm_epsilon = 1e-6
    stem_epsilons = "official"
    normalization: str | None = "vit"  # None if the family has several.
    position_resize = "official"
    # Other rules, of the code that wrote a file: names that it has, one that
    # it lacks, and the rule.
    other_resizes: tuple[tuple[Collection[str], str | None, str], ...] = ()
    # Rows in the position table before the patches, default first: with a
    # class token, and without; whether a table may lack the default.
    slots: tuple[tuple[int, ...], tuple[int, ...]] = ((1,), (0,))
    may_lack_slot = False
    no_table: str | None = None  # Positions of a file without a table.
    has_later_parts = False  # Whether files have parts of ViTs after 2021.
    has_architectures = False  # Whether `architecture` names a model.

    # The endings of files that are written, and the prefix of their names; ""
    # for folders. Empty if the family is read only.
    endings: dict[str, str] = {}

    # ------------------------------------------------------------------ names

    def names(self, config: ViTConfig) -> dict[str, list[Part]]:
        """Return the arrays in a file for each weight of a model.

        Raises:
            ValueError: If the family has no name for a layer.
        """
        found = {}
        for path, shape in shapes_of(config).items():
            layer, _, weight = path.rpartition("/")
            numbers = map(int, re.findall(NUMBER, layer))
            layer = re.sub(NUMBER, "_#", layer)
            template = f"{layer}/{weight}"
            stored, form = self.stored(template, *numbers)
            if not stored:
                raise ValueError(f"{self.title} has no name for {path}.")
            shape = (*shape[:-1], shape[-1] // len(stored))
            optional = weight == "bias" and layer.endswith(
                self.optional_bias or "-"
            )
            found[path] = [
                Part(name, form, shape, layer if optional else "")
                for name in stored
            ]
        return found

    def stored(self, path: str, *numbers: int) -> tuple[list[str], Form | None]:
        """Return the names of a weight's arrays and their form.

        `path` has "#" for `numbers`: that of the block, or those of the stage
        and the unit. Without a name, the list is empty.
        """
        layer, end = path.rpartition("/")[0], path
        while end and end not in self.style:
            end = end.partition("/")[2]
        if not end or layer not in self.layers:
            return [], None
        ending, form = self.style[end]
        first, unit = (*numbers, 0, 0)[:2]
        values = {
            "i": first,
            # keras-hub and vit-keras omit the number of the first block.
            "_i": f"_{first}" if first else "",
            # The official code counts stages and units from one.
            **{"s": first, "s1": first + 1, "u": unit, "u1": unit + 1},
        }
        names = self.layers[layer]
        names = (names,) if isinstance(names, str) else names
        return [name.format(**values) + ending for name in names], form

    def knows(self, name: str) -> bool:
        """Return whether a model of the family can have an array."""
        endings = "|".join({re.escape(end) for end, _ in self.style.values()})
        return any(
            re.fullmatch(
                re.sub(r"\\{\w+\\}", r"\\w*", re.escape(layer))
                + f"({endings})",
                name,
            )
            for names in self.layers.values()
            for layer in ((names,) if isinstance(names, str) else names)
        )

    def with_variants(self, variants: Iterable[Variant]) -> "Family":
        """Return the family with the names of some of its variants."""
        chosen = copy.copy(self)
        for row in variants:
            layers = {**chosen.layers, **row.layers}
            chosen.layers = {k: v for k, v in layers.items() if v is not None}
            chosen.style = {**chosen.style, **row.style}
        return chosen

    # ---------------------------------------------------------------- reading

    read = infer

    def prepare(self, shapes: dict[str, tuple], json: dict) -> dict[str, tuple]:
        """Rename arrays where patterns are not enough.

        Returns:
            For each new name, the old one and the index in that array, None
            for the whole array.
        """
        return {name: (name, None) for name in shapes}

    def read_hints(self, json: dict) -> tuple[dict, dict]:
        """Return what the JSON beside a file tells of the image model.

        The first is the part that describes this model, in which `find_hints`
        looks for more; the second are hints: fields of ViTConfig that it
        states, and what `guess_heads`, `complete` and `undetermined` of the
        same family ask for, such as "architecture".
        """
        return json, {}

    def guess_heads(self, config: ViTConfig, hints: dict) -> int | None:
        """Return the number of heads of the model of this name, or None."""
        return None

    def complete(
        self, config: ViTConfig, hints: dict, shapes: Shapes
    ) -> ViTConfig:
        """Return the configuration that the family's code computes.

        `config` is what names and shapes show, `hints` what the JSON states;
        `shapes` receives notes.

        Raises:
            ValueError: If no VisionTransformer computes it.
        """
        return config

    def undetermined(
        self, config: ViTConfig, names: Collection[str]
    ) -> Iterable[tuple[str, Collection[str]]]:
        """Yield parts of a model, each with fields that no file shows."""
        return ()

    def settle(
        self, config: ViTConfig, constants: dict[str, np.ndarray]
    ) -> ViTConfig:
        """Return the configuration with the constants in a file.

        They are arrays that are no weights, by the ends of their names.
        """
        return config

    def unread(self, config: ViTConfig) -> str:
        """Return the pattern of names that the family's code does not read."""
        return NOTHING

    # ---------------------------------------------------------------- writing

    def write(self, config: ViTConfig) -> Written:
        """Return what is written of a model beside its arrays.

        Raises:
            ValueError: If no class of the family computes such a model.
        """
        used = [row for row in self.variants if row.used_by(config)]
        return Written(self.with_variants(used))

    def keeps(self, config: ViTConfig) -> Collection[str]:
        """Return fields that a file can state; others are written as zeros."""
        return ()

    def class_entries(self, names: Sequence[str]) -> dict | None:
        """Return the entries of config.json with the names of the classes.

        They are in the order of the logits. None if folders of the family have
        no such names.
        """
        return None


class TextFamily(Family):
    """The text towers in the files of a library, which are only read.

    They are beside an image tower. The JSON beside a file states the sizes, and
    the arrays must fit them.
    """

    what = "text tower"
    wrappers = TORCH_WRAPPERS

    def read(self, json, shapes, known=None) -> TextConfig:
        """Return the configuration of the tower.

        Raises:
            ValueError: If no TextTransformer computes it.
        """
        raise NotImplementedError


def choose(table: dict, config: ViTConfig, field: str):
    """Return the row of a table for a field.

    Raises:
        ValueError: If the table has none; names the field.
    """
    value = getattr(config, field)
    if value not in table:
        raise ValueError(f"it has no {field}={value!r}")
    return table[value]


def rename(name: str, changes: Changes) -> str:
    """Return `name` after applying all `changes`."""
    for pattern, replacement in changes:
        name = re.sub(pattern, replacement, name)
    return name


def split_projections(
    name: str, parts=("query", "key", "value")
) -> tuple[str, ...]:
    """Return the names of projections that have arrays of their own."""
    return tuple(name + part for part in parts)


# ------------------------------------------------------------ paths and shapes


def find_class_names(json: dict, num_classes: int) -> list[str] | None:
    """Return the names of the classes that a config.json states.

    Returns:
        The names in the order of the logits; None if it names none, or not as
        many.
    """
    names, by_index = json.get("label_names"), json.get("id2label")
    if isinstance(by_index, dict) and len(by_index) == num_classes:
        names = [by_index.get(str(index)) for index in range(num_classes)]
    if not isinstance(names, list) or len(names) != num_classes:
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    # The names that transformers writes for classes without names.
    numbers = [f"LABEL_{index}" for index in range(num_classes)]
    return None if names == numbers else names


def effective_fields(found: ViTConfig, config: ViTConfig) -> dict[str, Any]:
    """Return the fields of `found` that matter for the outputs of `config`.

    Each with its default, and of LayerScale only whether there is one.
    """
    fields = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(found)
    }
    fields["layer_scale_init"] = found.layer_scale_init is not None
    fields["pooling_heads"] = found.pooling_heads or found.num_heads
    fields["pooling_mlp_dim"] = found.pooling_mlp_dim or found.mlp_dim
    pooling, rotary = config.pooling, config.rotary_positions
    is_whole = pooling == "none" and not config.representation_size
    needed = getattr(ROTARY_POSITIONS.get(rotary), "needs", ())
    skipped = {
        # Without a head, the features may be read anywhere.
        "pooling": is_whole and not config.num_classes,
        "pooling_indices": pooling != "prefix",
        "pooling_heads": not pooling.startswith("map"),
        "pooling_mlp_dim": not pooling.startswith("map"),
        "stem_epsilons": config.stem_stages is None,
        "layer_scale_branches": config.layer_scale_init is None,
        "relative_hidden_dim": config.relative_positions == "none",
        "use_shared_relative_positions": config.relative_positions == "none",
        "use_prefix_positions": config.position_embedding == "none"
        or not config.num_prefix_tokens,
        "qk_norm": config.num_heads == 1,  # A head is the whole width.
    }
    return {
        name: value
        for name, value in fields.items()
        if not skipped.get(name)
        and (
            name == "rotary_positions"
            or not name.startswith("rotary_")
            or name in needed
        )
    }


def shapes_of(config: ViTConfig | TextConfig) -> dict[str, tuple]:
    """Return the shape of each weight of the model of `config`, by path.

    No weight is made, so a file that claims to contain a gigantic model needs
    no memory. All blocks are alike, so one of them is built.
    """
    changes = {"depth": 1}
    if isinstance(config, ViTConfig):
        changes["use_dynamic_image_size"] = False
        kind = POSITION_EMBEDDINGS.get(config.position_embedding)
        is_computed = kind is not None and kind.may_lack_table
        if config.relative_positions in ("none", "mlp") and (
            is_computed or config.position_embedding == "none"
        ):
            # Nothing has the size of the image, which may be gigantic.
            changes["image_size"] = config.patch_size * config.stem_stride
    found = {}
    for path, shape in _shapes_of_one_block(
        dataclasses.replace(config, **changes)
    ):
        first, slash, rest = path.partition("/")
        numbers = range(config.depth) if first.endswith("_00") else (0,)
        for index in numbers:
            start = first.removesuffix("_00")
            start += f"_{index:02d}" if start != first else ""
            found[start + slash + rest] = shape
    return found


@functools.lru_cache(maxsize=32)
def _shapes_of_one_block(config) -> tuple[tuple[str, tuple], ...]:
    """Return the weights of the model of `config`, whose depth is 1."""
    is_text = isinstance(config, TextConfig)
    model_class = TextTransformer if is_text else VisionTransformer

    def build():
        with keras.StatelessScope(initialize_variables=False):
            model = model_class(config, dtype="float32")
        return tuple((w.path, tuple(w.shape)) for w in model.weights)

    # Keras keeps its state by thread: a thread of its own leaves no trace.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        state = random.getstate()
        try:
            return pool.submit(build).result()
        finally:
            random.setstate(state)


# ----------------------------------------------------------- forms and styles


def _patch_shape(shape):
    """Return (P, P, C, D), of flat patches (D, P * P * C) as well."""
    if len(shape) != 2:
        return shape
    side = math.isqrt(shape[1] // 3)
    if 3 * side**2 != shape[1]:
        raise ValueError(
            f"its patches of {shape[1]} numbers are not square patches of "
            "three channels"
        )
    return side, side, 3, shape[0]


def _from_torch(array, shape):
    return array.T if array.ndim < 4 else array.transpose(2, 3, 1, 0)


def _patches_of_channels(array, shape):
    rows, columns, channels, width = _patch_shape(shape)
    patches = array.reshape(width, channels, rows, columns)
    return patches.transpose(2, 3, 1, 0)


def _reshaped(array, shape):
    return array.reshape(shape)


SAME = Form(lambda x, heads: x, _reshaped)
# A matrix (in, out) to (out, in); (rows, columns, in, out) to PyTorch's (out,
# in, rows, columns).
TRANSPOSED = Form(
    lambda x, heads: x.T if x.ndim < 4 else x.transpose(3, 2, 0, 1),
    _from_torch,
)
VECTOR = Form(lambda x, heads: x.reshape(-1), _reshaped)
ONE_MORE_AXIS = Form(lambda x, heads: x[None], _reshaped)
ONE_AXIS_LESS = Form(lambda x, heads: x[0], _reshaped)
# A separate axis for the heads: (D, D) as (D, K, D/K), (D,) as (K, D/K), and
# (D, D) as (K, D/K, D).
SPLIT_LAST = Form(
    lambda x, heads: x.reshape(*x.shape[:-1], heads, -1), _reshaped
)
SPLIT_FIRST = Form(lambda x, heads: x.reshape(heads, -1, x.shape[1]), _reshaped)
# (P, P, C, D) to (D, P * P * C), for images of three channels.
FLAT_PATCHES = Form(
    lambda x, heads: x.reshape(-1, x.shape[-1]).T,
    lambda x, shape: x.T.reshape(_patch_shape(shape)),
)
# The same with the patches in the order (channel, row, column).
FLAT_CHANNELS = Form(
    lambda x, heads: x.transpose(3, 2, 0, 1).reshape(x.shape[-1], -1),
    _patches_of_channels,
)
# (P, P, C, D) to (P * P * C, D).
FLAT_ROWS = Form(
    lambda x, heads: x.reshape(-1, x.shape[-1]),
    lambda x, shape: x.reshape(
        _patch_shape(shape[::-1]) if len(shape) == 2 else shape
    ),
)

HEADS_APART = {
    **dict.fromkeys(("qkv", "query", "key_value"), SPLIT_LAST),
    **dict.fromkeys(("attention/out", "pooling/out"), SPLIT_FIRST),
}
BATCHED = {
    "token": ("", SAME),
    "embedding": ("", ONE_MORE_AXIS),
    "probe": ("", ONE_MORE_AXIS),
}
SINGLES = {"token": ("/vars/0", SAME), "embedding": ("/vars/0", SAME)}


def _make_style(endings, kernel, singles, are_heads_apart=False) -> Style:
    """Return the style of a library.

    `endings` are those of a kernel and a bias, and of the scale and the bias
    of a norm; `singles` are rows of weights that are alone in their layer.
    """
    style = {
        "kernel": (endings[0], kernel),
        "bias": (endings[1], SAME),
        "gamma": (endings[2], SAME),
        "beta": (endings[3], SAME),
        **singles,
    }
    for layer, form in HEADS_APART.items() if are_heads_apart else ():
        style[f"{layer}/kernel"] = (endings[0], form)
        if form is SPLIT_LAST:
            style[f"{layer}/bias"] = (endings[1], form)
    return style


_VARS = ("/vars/0", "/vars/1", "/vars/0", "/vars/1")
FLAX = _make_style(("/kernel", "/bias", "/scale", "/bias"), SAME, BATCHED, True)
TORCH = {
    **_make_style(
        (".weight", ".bias", ".weight", ".bias"), TRANSPOSED, BATCHED
    ),
    # The parts of later Vision Transformers.
    "scale": (".gamma", SAME),
    "query_bias": (".q_bias", SAME),
    "value_bias": (".v_bias", SAME),
    "frequency": ("", SAME),
    "table": ("", SAME),
}
KERAS_2 = _make_style(("/kernel", "/bias", "/gamma", "/beta"), SAME, BATCHED)
KERAS_3 = _make_style(_VARS, SAME, SINGLES)
KERAS_3_HEADS_APART = _make_style(_VARS, SAME, SINGLES, True)
# The patch encoder of files that project flat patches instead of convolving.
FLAT_CONV = {"patch_encoder/kernel": (".weight", FLAT_PATCHES)}
