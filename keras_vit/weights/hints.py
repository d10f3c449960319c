"""Hints: fields of ViTConfig in the JSON beside a checkpoint."""

import collections
from collections.abc import Iterator
from typing import Any

from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.positions import POSITION_EMBEDDINGS
from keras_vit.layers.resnet_stem import STEM_EPSILONS

# Largest number of objects and lists to search.
MAX_VALUES = 10_000


def find_hints(config: dict) -> dict[str, Any]:
    """Return the fields of ViTConfig that another library's JSON states.

    `image_sizes` is a list: a file may state the image sizes of the model and
    of the model that it was fine-tuned from.

    Args:
        config: A parsed JSON object. Outer values have priority over inner
            ones.

    Raises:
        ValueError: If it names an activation or a pooling that a
            VisionTransformer does not have.
    """
    found, unknown = {}, []
    for row in _objects(config):
        for field, keys, read in HINTS:
            for key in (key for key in keys if key in row):
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


def _objects(config) -> Iterator[dict]:
    """Yield a JSON object and the objects inside it, outer ones first."""
    waiting = collections.deque([config])
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        value = waiting.popleft()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            yield value
            waiting.extend(value.values())


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
        sizes = sizes[1:] if sizes[0] < sizes[-1] else sizes[:2]
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
_read_pooling = _one_of(
    POOLINGS, tok="token", gap="avg", unpooled="none", **{"": "none"}
)
_read_positions = _one_of(
    POSITION_EMBEDDINGS, learn="learned", sincos2d="sincos_2d"
)

# Keys whose unknown values indicate an unsupported model. Unknown values of
# other keys are ignored.
STRICT = ("hidden_act", "act_layer", "global_pool")
# Fields of ViTConfig, their keys in the JSON of other libraries, and a function
# that reads a value; it returns None for an invalid value.
HINTS = (
    ("num_heads", ("num_heads", "num_attention_heads"), _number),
    (
        "image_sizes",
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
    # In the files of this package.
    ("activation", ("gelu",), _one_of(ACTIVATIONS, erf="exact", swish="silu")),
    # Not "activation", which each layer of Keras has.
    ("activation", ("hidden_act", "act_layer"), _read_activation),
    (
        "layer_norm_epsilon",
        ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"),
        _epsilon,
    ),
    (
        "pooling",
        ("pooling", "global_pool", "pool", "classifier"),
        _read_pooling,
    ),
    (
        "position_embedding",
        ("position_embedding", "posemb", "pos_embed"),
        _read_positions,
    ),
    ("stem_epsilons", ("stem_epsilons",), _one_of(STEM_EPSILONS)),
)
