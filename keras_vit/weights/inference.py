"""What model a checkpoint holds: family and configuration, from its names."""

import collections
import dataclasses
import math
import numbers
import re
from typing import Any, NamedTuple

import numpy as np

from keras_vit.layers.mlp import GELUS
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.position_embedding import POSITION_EMBEDDINGS
from keras_vit.layers.resnet_stem import STEM_EPSILONS
from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.weights.containers import Checkpoint, errors_name
from keras_vit.weights.layouts import (
    FLAX,
    LAYOUTS,
    Layout,
    Part,
    foreign_parts,
    parts_of,
)

# A number in a name, and one that stands for any.
NUMBER = r"(\d{1,6})"
NUMBERED = 987_654


class Source(NamedTuple):
    """A checkpoint that was understood; none of its arrays has been read.

    Args:
        checkpoint: The open file.
        family: The key of its layout in LAYOUTS.
        spelling: Which of the spellings of the family it has; "" for the
            usual one.
        names: For each name of the layout, the name in the file and, where
            the file stacks all blocks in one array, the number of the slice.
        ignored: Names in the file that are no weights of the model.
        config: The model it holds.
        parts: The arrays of each weight of that model.
        has_class_slot: Whether the first row of its position table is the
            class token's.
    """

    checkpoint: Checkpoint
    family: str
    spelling: str
    names: dict[str, tuple[str, int | None]]
    ignored: tuple[str, ...]
    config: ViTConfig
    parts: dict[str, list[Part]]
    has_class_slot: bool

    @property
    def layout(self) -> Layout:
        """The row of LAYOUTS."""
        return LAYOUTS[self.family]

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights of the model have."""
        return sum(
            math.prod(part.shape)
            for parts in self.parts.values()
            for part in parts
        )


def understand(
    checkpoint: Checkpoint,
    num_heads: int | None = None,
    image_size: tuple | int | None = None,
    source_image_size: tuple | int | None = None,
) -> Source:
    """Return what model `checkpoint` holds.

    Args:
        checkpoint: An open file.
        num_heads: Number of heads, for a file that does not show it.
        image_size: (height, width) in pixels of the model that is wanted; the
            file is of this size if it cannot be of another.
        source_image_size: (height, width) of the images of the file, for one
            that does not show it.

    Raises:
        ValueError: If it is of no known family, or anything is missing, left
            over or of an unexpected shape; names all of it.
    """
    with errors_name(checkpoint.path):
        family, wrapper = recognise(checkpoint)
        layout = LAYOUTS[family]
        names, spelling, ignored = _canonical_names(checkpoint, layout, wrapper)
        reader = _Inference(checkpoint, layout, names)
        reader.num_heads = num_heads
        reader.image_size = _pair(image_size)
        reader.source_image_size = _pair(source_image_size)
        config = reader.config()
        parts = parts_of(layout, config)
        extra = _check(checkpoint, layout, names, config, parts)
    return Source(
        checkpoint,
        family,
        spelling,
        names,
        (*ignored, *extra),
        config,
        parts,
        reader.has_class_slot,
    )


def recognise(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the family of a checkpoint and what stands before its names.

    Args:
        checkpoint: An open file.

    Raises:
        ValueError: If no family of LAYOUTS has such names.
    """
    for family, layout in LAYOUTS.items():
        for wrapper in ("", *layout.wrappers):
            names = {wrapper + name for name in layout.recognise}
            unless = re.compile(re.escape(wrapper) + f"({layout.unless})")
            if names & checkpoint.entries.keys() and not any(
                map(unless.match, checkpoint.entries)
            ):
                return family, wrapper
    titles = ", ".join(layout.title for layout in LAYOUTS.values())
    shown = ", ".join(list(checkpoint.entries)[:8]) or "none at all"
    foreign = foreign_parts(checkpoint.entries)
    hint = f" They tell of {', '.join(foreign)}." if foreign else ""
    raise ValueError(
        f"{checkpoint.path} is no ViT of a known family ({titles}). "
        f"Its arrays are called {shown}.{hint}"
    )


def _canonical_names(checkpoint, layout, wrapper):
    """Return the names as the layout has them, the spelling and the rest."""
    ignored, inside = [], {}
    for name, entry in checkpoint.entries.items():
        if not name.startswith(wrapper) and (
            wrapper.endswith("/") or re.match(layout.ignore, name)
        ):
            # Beside the parameters lies what belongs to their training.
            ignored.append(name)
            continue
        short = name.removeprefix(wrapper)
        if short in inside:
            raise ValueError(f"{short} is stored twice, once behind {wrapper}")
        inside[short] = (name, entry.shape)
    shapes = {name: shape for name, (_, shape) in inside.items()}
    prepared = {name: (name, None) for name in shapes}
    if layout.prepare:
        prepared = layout.prepare(shapes)
    spelling = (
        "scan" if any(n is not None for _, n in prepared.values()) else ""
    )
    names = {}
    for name, (stored, index) in prepared.items():
        raw = inside[stored][0]
        new = name
        for pattern, replacement in layout.aliases:
            new = re.sub(pattern, replacement, new)
        if re.match(layout.ignore, new):
            ignored.append(raw)
            continue
        if new in names:
            raise ValueError(
                f"{new} is stored twice, as {names[new][0]} and as {raw}"
            )
        names[new] = (raw, index)
        spelled = _spelling_of(layout, new)
        if new != name and name in spelled:
            spelling = spelled[name]
    return names, spelling, dict.fromkeys(ignored)


def _spelling_of(layout, name):
    """Return the other ways a name is written, and what they are called."""
    ways = {}
    for spelling, changes in layout.spellings.items():
        new = name
        for pattern, replacement in changes:
            new = re.sub(pattern, replacement, new)
        if new != name:
            ways[new] = spelling
    return ways


# ------------------------------------------------------- what names cannot say


def _number(value):
    return value if type(value) is int and 0 < value < 2**20 else None


def _pair(size):
    """Return (height, width) of an argument, None for None."""
    if size is None:
        return None
    # ViTConfig says what is wrong with one that is none.
    return (size, size) if isinstance(size, numbers.Number) else tuple(size)


def _size(value):
    """Return (height, width) of a number or a list, None for anything else."""
    sizes = [value, value] if type(value) is int else value
    if not isinstance(sizes, (list, tuple)) or len(sizes) not in (2, 3, 4):
        return None
    # (C, H, W) in timm's input_size, (H, W, C) in keras-hub's image_shape,
    # behind a batch axis in Keras' own input layer.
    sizes = list(sizes)[1 if len(sizes) == 4 else 0 :]
    if not all(map(_number, sizes)):
        return None
    if len(sizes) == 3:
        sizes = sizes[1:] if sizes[0] < sizes[-1] else sizes[:2]
    return tuple(sizes)


def _epsilon(value):
    good = isinstance(value, (int, float)) and 0 < value < 1
    return float(value) if good else None


def _row(rows):
    return lambda value: rows.get(value) if isinstance(value, str) else None


_GELU = _row(
    {
        **{name: name for name in GELUS},
        "erf": "exact",
        "gelu": "exact",
        "gelu_python": "exact",
        "gelu_new": "tanh",
        "gelu_fast": "tanh",
        "gelu_tanh": "tanh",
        "gelu_pytorch_tanh": "tanh",
        "gelu_python_tanh": "tanh",
    }
)
_POOLING = _row(
    {
        **{name: name for name in POOLINGS},
        "tok": "token",
        "gap": "avg",
        "unpooled": "none",
        "": "none",
    }
)
_POSITIONS = _row(
    {
        **{name: name for name in POSITION_EMBEDDINGS},
        "learn": "learned",
        "sincos2d": "sincos_2d",
    }
)

# Field of ViTConfig: what it is called in the configurations of others, and
# how its value is read. A value that cannot be one is passed over.
HINTS = {
    "num_heads": (("num_heads", "num_attention_heads"), _number),
    "image_sizes": (
        (
            "image_size",
            "img_size",
            "image",
            "image_shape",
            "input_size",
            "batch_shape",
            "batch_input_shape",
        ),
        _size,
    ),
    "gelu": (("gelu", "hidden_act", "act_layer"), _GELU),
    "layer_norm_epsilon": (
        ("layer_norm_epsilon", "layer_norm_eps"),
        _epsilon,
    ),
    "pooling": (("pooling", "global_pool", "pool", "classifier"), _POOLING),
    "position_embedding": (
        ("position_embedding", "posemb", "pos_embed"),
        _POSITIONS,
    ),
    "stem_epsilons": (
        ("stem_epsilons",),
        _row({name: name for name in STEM_EPSILONS}),
    ),
}
# Where another value than those that are known makes another model.
STRICT = ("hidden_act", "act_layer", "global_pool")


def find_hints(config: dict) -> dict[str, Any]:
    """Return the fields of ViTConfig that a foreign configuration tells.

    Image sizes are several, under `image_sizes`: of the model and of the one
    that it was tuned from, say.

    Args:
        config: A parsed JSON object. An outer value goes before an inner one.

    Raises:
        ValueError: If it names an activation or a pooling that no model here
            has.
    """
    found, waiting, seen = {}, collections.deque([config]), 0
    while waiting and seen < 10_000:
        seen += 1
        value = waiting.popleft()
        if isinstance(value, list):
            waiting.extend(value)
        if not isinstance(value, dict):
            continue
        for field, (aliases, read) in HINTS.items():
            for alias in aliases:
                if alias in value:
                    hint = read(value[alias])
                    if field == "image_sizes" and hint is not None:
                        found.setdefault(field, []).append(hint)
                    elif hint is not None:
                        found.setdefault(field, hint)
                    elif alias in STRICT and isinstance(value[alias], str):
                        raise ValueError(
                            f"its configuration has {alias}={value[alias]!r}, "
                            "which no model here has"
                        )
        if value.get("pool_include_prefix") is True:
            raise ValueError(
                "its configuration has pool_include_prefix=True; poolings "
                "here leave the class token out"
            )
        waiting.extend(value.values())
    return found


class _Inference:
    """Reads a configuration off names and shapes."""

    # What the caller knows.
    num_heads = image_size = source_image_size = None

    def __init__(self, checkpoint, layout, names):
        self.checkpoint = checkpoint
        self.layout = layout
        self.names = names
        self.hints = find_hints(checkpoint.config)
        self.table_rows = 0
        self.has_class_slot = False

    def fail(self, message):
        foreign = foreign_parts(self.names)
        if foreign:
            message += f" It is a model with {', '.join(foreign)}."
        raise ValueError(f"{self.checkpoint.path}: {message}")

    def name_of(self, template, kind, weight, **fields):
        """Return what the family calls a weight, None if it has no name."""
        name = self.layout.names.get(template)
        if name is None:
            return None
        name = name if isinstance(name, str) else name[0]
        index = fields.get("i")
        fields["_i"] = f"_{index}" if index else ""
        return name.format(**fields) + self.layout.style[kind][weight][0]

    def shape_in_file(self, *row, **fields):
        """Return the shape of an array of the file, None if it is missing."""
        stored = self.names.get(self.name_of(*row, **fields))
        if stored is None:
            return None
        shape = self.checkpoint.entries[stored[0]].shape
        return shape if stored[1] is None else shape[1:]

    def shape(self, template, kind, weight, rank, **fields):
        """Return the shape of a weight in our form, None if it is missing."""
        shape = self.shape_in_file(template, kind, weight, **fields)
        if shape is None:
            return None
        if len(shape) != rank or 0 in shape:
            name = self.name_of(template, kind, weight, **fields)
            self.fail(f"{name} has the shape {shape}, of another rank.")
        array = np.broadcast_to(np.float32(0), shape)
        return self.layout.style[kind][weight][1].to_ours(array, shape).shape

    def has(self, *row):
        return self.shape_in_file(*row) is not None

    def vote(self, *witnesses):
        """Return the size that most of the given arrays have, None if none.

        Args:
            *witnesses: Template, kind, weight, rank and axis of each.
        """
        votes = collections.Counter()
        for *row, rank, axis in witnesses:
            for index in range(3 if "{i" in row[0] else 1):
                shape = self.shape_in_file(*row, i=index)
                if shape is not None and len(shape) == rank and 0 not in shape:
                    votes[self.shape(*row, rank, i=index)[axis]] += 1
        return votes.most_common(1)[0][0] if votes else None

    def need(self, *row, **fields):
        shape = self.shape(*row, **fields)
        if shape is None:
            self.fail(f"it lacks {self.name_of(*row[:3], **fields)}.")
        return shape

    def config(self) -> ViTConfig:
        architecture = self.checkpoint.config.get("architecture")
        if isinstance(architecture, str) and "_rpn_" in architecture:
            # The names are those of a plain ViT.
            self.fail(f"{architecture} normalises after the attention.")
        rows, columns, channels, width = self.need(
            "patch_encoder", "conv", "kernel", 4
        )
        if rows != columns:
            self.fail(f"its patches are not square but {rows}x{columns}.")
        depth = self.count_blocks()
        block = "block_{i:02d}/"
        # Several arrays know each size; one that is damaged is outvoted, and
        # named when all are compared.
        width = self.vote(
            (block + "attention_norm", "norm", "gamma", 1, 0),
            (block + "mlp_norm", "norm", "gamma", 1, 0),
            ("patch_encoder", "conv", "kernel", 4, 3),
        )
        mlp_dim = self.vote(
            (block + "mlp/hidden", "dense", "bias", 1, 0),
            (block + "mlp/hidden", "dense", "kernel", 2, 1),
            (block + "mlp/out", "dense", "kernel", 2, 0),
        )
        if mlp_dim is None:
            row = (block + "mlp/hidden", "dense", "kernel")
            self.fail(f"it lacks {self.name_of(*row, i=0)}.")
        has_token = self.has("class_token", "token", "token")
        stages = self.stem_stages()
        if stages is not None:
            channels = self.need("stem/root_conv", "stem", "kernel", 4)[2]
        pooling_norm = self.has("pooling_norm", "norm", "gamma")
        representation, classes = (
            self.vote(
                (layer, "dense", "bias", 1, 0),
                (layer, "dense", "kernel", 2, 1),
            )
            for layer in ("pre_logits", "predictions")
        )
        try:
            config = ViTConfig(
                width=width,
                depth=depth,
                mlp_dim=mlp_dim,
                num_heads=self.heads(width, depth, mlp_dim),
                patch_size=rows,
                # The grid comes last; any size will do until then.
                image_size=2**12 * rows,
                channels=channels,
                stem_stages=stages,
                stem_epsilons=self.stem_epsilons(stages),
                use_class_token=has_token,
                pooling=self.pooling(has_token, pooling_norm),
                use_pooling_norm=pooling_norm,
                representation_size=representation,
                num_classes=classes or 0,
                gelu=self.hints.get("gelu", self.layout.gelu),
                layer_norm_epsilon=self.hints.get(
                    "layer_norm_epsilon", self.layout.layer_norm_epsilon
                ),
            )
            config = self.headless_hugging_face(config)
            return self.with_positions(config)
        except ValueError as error:
            if self.checkpoint.path in str(error):
                raise
            self.fail(str(error))

    def headless_hugging_face(self, config):
        """Drop a pooler that the classifier of the family does not read."""
        if self.layout is not LAYOUTS["huggingface"]:
            return config
        if config.num_classes:
            return dataclasses.replace(config, representation_size=None)
        activation = self.checkpoint.config.get("pooler_act", "tanh")
        if config.representation_size and activation != "tanh":
            self.fail(f"its pooler ends in {activation!r} and not in tanh.")
        return config

    def count_blocks(self):
        row = ("block_{i:02d}/attention_norm", "norm", "gamma")
        first = self.name_of(*row, i=0)
        # Any name of a block counts it.
        start, _, _ = self.name_of(*row, i=NUMBERED).partition(str(NUMBERED))
        pattern = re.compile(re.escape(start) + NUMBER + r"[./]")
        found = [pattern.match(name) for name in self.names]
        indices = {int(match[1]) for match in found if match}
        if "{_i}" in self.layout.names[row[0]]:
            # These families write no number for the first.
            zero = start.removesuffix("_") + "/"
            indices |= {0 for name in self.names if name.startswith(zero)}
        if not indices:
            self.fail(f"it has no block; {first} is missing.")
        if len(indices) <= max(indices):
            lost = next(i for i in range(len(indices) + 1) if i not in indices)
            self.fail(
                f"it lacks {self.name_of(*row, i=lost)}, of block {lost} of "
                f"{max(indices) + 1}."
            )
        return len(indices)

    def stem_stages(self):
        template = "stem/stage_{s:02d}_unit_{u:02d}/conv1"
        if not self.has("stem/root_conv", "stem", "kernel"):
            return None
        two = dict.fromkeys(("s", "u", "s1", "u1"), NUMBERED)
        pattern = self.name_of(template, "stem", "kernel", **two)
        pattern = re.escape(pattern).replace(str(NUMBERED), NUMBER)
        units = [re.fullmatch(pattern, name) for name in self.names]
        units = {(int(m[1]), int(m[2])) for m in units if m}
        if not units:
            return ()
        # One family counts from one, the other from zero.
        base = 1 if "{s1}" in self.layout.names[template] else 0
        counts = collections.Counter(stage - base for stage, _ in units)
        last = max(counts)
        if min(counts) < 0 or last > 16:
            self.fail(f"its stem has a stage {last + base}.")
        return tuple(counts[stage] for stage in range(last + 1))

    def stem_epsilons(self, stages):
        if stages is None:
            return "official"  # There is no stem, so nothing differs.
        return self.hints.get("stem_epsilons", self.layout.stem_epsilons)

    def heads(self, width, depth, mlp_dim):
        template = "block_{i:02d}/attention/qkv"
        shown = collections.Counter()
        for index in range(depth):
            for weight, axis in (("kernel", 1), ("bias", 0)):
                row = (template, "heads_in", weight)
                shape = self.shape_in_file(*row, i=index) or ()
                if len(shape) == axis + 2 and 0 not in shape:
                    shown[shape[axis]] += 1
        shown = shown.most_common(1)[0][0] if shown else None
        told = shown or self.hints.get("num_heads")
        if told is None and "architecture" in self.checkpoint.config:
            told = _published_heads(width, depth, mlp_dim)
        if told or self.num_heads:
            return told or self.num_heads
        published = _published_heads(width, depth, mlp_dim)
        hint = f" The published model of this size has {published}."
        self.fail(
            f"{self.layout.title} does not store the number of heads; pass "
            f"`num_heads=`.{hint if published else ''}"
        )

    def pooling(self, has_token, pooling_norm):
        if "probe" in self.layout.style and self.has(
            "pooling", "probe", "probe"
        ):
            if has_token and self.layout is LAYOUTS["timm"]:
                self.fail(_REFUSED_MAP)
            return "map"
        told = self.hints.get("pooling")
        if self.layout is LAYOUTS["keras_hub"] and has_token and told == "avg":
            self.fail(
                "keras-hub's 'gap' averages the class token with the patches, "
                "which no pooling here does. Load it without its head from a "
                "folder that has no task.json."
            )
        if told == "token" and not has_token:
            name = self.name_of("class_token", "token", "token")
            self.fail(f"it is to pool by the class token and lacks {name}.")
        if told == "map":
            told = None
        usual = "token" if has_token and not pooling_norm else "avg"
        return told or usual

    def with_positions(self, config):
        """Return `config` with the image size that fits the position table."""
        row = ("position_embedding", "embedding", "embedding")
        shape = self.shape_in_file(*row)
        if shape is None:
            kind = self.hints.get("position_embedding", self.layout.no_table)
            if self.is_official(config):
                self.fail(f"it lacks {LAYOUTS['official'].names[row[0]]}.")
            if kind not in ("sincos_2d", "none"):
                self.fail(f"it lacks {self.name_of(*row)}.")
            sizes = [*self.sizes_told(), self.image_size]
            if sizes[0] is None:
                self.fail(
                    "it has no position table to tell the size of its images; "
                    "pass `image_size=`."
                )
            if kind == "sincos_2d" and config.width % 4:
                self.fail(
                    f"sine-cosine positions need a width that 4 divides, not "
                    f"{config.width}."
                )
            return dataclasses.replace(
                config, position_embedding=kind, image_size=sizes[0]
            )
        if len(shape) not in (2, 3) or shape[-1] != config.width:
            self.fail(
                f"{self.name_of(*row)} has the shape {shape}; "
                f"(1, rows, {config.width}) was expected."
            )
        self.table_rows = math.prod(shape[:-1])
        size = self.table_size(config)
        return dataclasses.replace(config, image_size=size)

    def is_official(self, config):
        """Return whether a file without positions looks like the official.

        Those of big_vision with sine-cosine positions average the patches;
        with a class token and the names of before Linen it is a file of the
        official code that has lost its table.
        """
        released = any("/MlpBlock_3/" in raw for raw, _ in self.names.values())
        return released and config.use_class_token

    def sizes_told(self):
        if self.source_image_size:
            return [self.source_image_size]
        return self.hints.get("image_sizes", [])

    def table_size(self, config):
        """Return the image size that the position table was made for.

        A square number of rows is a square grid, unless the caller or the
        file itself says otherwise. `image_size` is meant for the model; it is
        taken for the file's where nothing else fits.
        """
        rows, given = self.table_rows, self.image_size
        slots = self.layout.slots[0 if config.use_class_token else 1]
        square = _square_image(config, rows - slots[0])
        told = [(size, slot) for size in self.sizes_told() for slot in slots]
        choices = [*told, (square, slots[0]), (given, slots[0])]
        if self.layout.style is FLAX:
            choices += [(_square_image(config, rows - s), s) for s in slots[1:]]
        if self.source_image_size:
            choices = told
        fits = [
            (size, slot)
            for size, slot in choices
            if size and _num_patches(config, size) == rows - slot
        ]
        if not fits:
            size = self.source_image_size or given
            self.fail(
                f"its {rows} positions are no square grid behind a class "
                "token; pass `source_image_size=` (height, width) of its "
                f"images.{f' Received: {size}' if size else ''}"
            )
        size, slot = fits[0]
        if fits[0] not in told and given not in (None, size):
            if any(_num_patches(config, given) == rows - s for s in slots):
                self.fail(
                    f"its {rows} positions may be those of images of "
                    f"{size[0]}x{size[1]} or {given[0]}x{given[1]} pixels; "
                    "pass `source_image_size=`."
                )
        self.has_class_slot = bool(slot)
        return size


_REFUSED_MAP = (
    "timm's attention pooling passes over the class token, which that of this "
    "package reads."
)


def _published_heads(width, depth, mlp_dim):
    """Return the heads of the published models of a size, None if none is."""
    found = {
        row.config.num_heads
        for row in VARIANTS.values()
        if (row.config.width, row.config.depth, row.config.mlp_dim)
        == (width, depth, mlp_dim)
    }
    return found.pop() if len(found) == 1 else None


def _square_image(config, patches):
    """Return the size of a square image of `patches`, None if there is none."""
    grid = math.isqrt(max(patches, 0))
    if grid == 0 or grid * grid != patches:
        return None
    side = grid * config.patch_size * config.stem_stride
    return side, side


def _num_patches(config, image_size):
    """Return the patches of images of a size, None if they do not fit."""
    try:
        sized = dataclasses.replace(config, image_size=image_size)
    except ValueError:
        return None
    return math.prod(sized.grid_size)


# ------------------------------------------------------------------- checking


def _check(checkpoint, layout, names, config, parts):
    """Raise a ValueError that names all that does not fit the model.

    Returns the entries that the family itself does not read.
    """
    expected = {part.name: part for row in parts.values() for part in row}
    missing = [name for name in expected if name not in names]
    optional = [name for name, part in expected.items() if part.optional]
    # A model without them has none at all.
    if set(optional) <= set(missing) and (
        checkpoint.config.get("qkv_bias") is not True
    ):
        missing = [name for name in missing if name not in optional]
    extra = [name for name in names if name not in expected]
    unread = []
    if layout is LAYOUTS["huggingface"] and config.num_classes:
        # Its classifier goes without the pooler, which some files still hold.
        unread = [n for n in extra if n.startswith("vit.pooler.dense.")]
        extra = [n for n in extra if n not in unread]
    misshapen = []
    table = parts.get("position_embedding/embedding", [None])[0]
    for name, part in expected.items():
        if name not in names:
            continue
        raw, index = names[name]
        entry = checkpoint.entries[raw]
        shape = entry.shape if index is None else entry.shape[1:]
        wanted = part.shape_in_file(config.num_heads)
        if not entry.is_float:
            misshapen.append(f"{raw} of type {entry.dtype}")
        elif part is not table and not _same_shape(shape, wanted):
            misshapen.append(f"{raw} {shape}, expected {wanted}")
    lines = [
        f"{what}: {', '.join(rows)}."
        for what, rows in (
            ("missing", missing),
            ("left over", dict.fromkeys(names[name][0] for name in extra)),
            ("of another shape", misshapen),
        )
        if rows
    ]
    if lines:
        foreign = foreign_parts(extra)
        if foreign:
            lines.append(f"It is a model with {', '.join(foreign)}.")
        raise ValueError(
            f"{checkpoint.path} is not a complete ViT of {layout.title}. "
            + " ".join(lines)
        )
    return [names[name][0] for name in unread]


def _same_shape(shape, wanted):
    # Flax stored the scales of group norms as (1, 1, 1, C) for a time.
    if len(wanted) == 1 and set(shape[:-1]) == {1}:
        shape = shape[-1:]
    return shape == wanted
