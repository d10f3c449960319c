"""The ResNets of BiT and of keras.applications, the baselines.

Pre-activation, group norm, standardised kernels.
"""

import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_vit.layers import PreActivationUnit
from keras_vit.layers.resize import adapt_channels
from keras_vit.layers.resnet_stem import (
    GROUPS,
    ROOT_WIDTH,
    StandardizedConv2D,
    group_norm,
)
from keras_vit.tables import check_name, list_first, pick
from keras_vit.weights.containers import errors_name, open_file
from keras_vit.weights.hub import cache_dir, fetch, locate, storage_url
from trainers.recipes.baselines import BASELINES, BIT_SIZES, BitSize

EPSILONS = "bit"


def build_bit_resnet(
    size: BitSize,
    *,
    image_size: int | None,
    channels: int = 3,
    num_classes: int,
    head_bias: float = 0.0,
    dtype=None,
    name: str = "bit_resnet",
) -> keras.Model:
    """Return a new BiT ResNet, which returns logits.

    The kernel of the head starts at zero, as in the official code.

    Shapes: images: (B, H, W, C), floats in [-1, 1]. returns: (B, classes).

    Args:
        size: A row of BIT_SIZES, or another one.
        image_size: Side of the images, in pixels; None for images of any size.
        channels: Channels of the images.
        num_classes: Number of logits; 0 for a model without a head.
        head_bias: Initial bias of the head.
        dtype: Dtype policy of the layers.
        name: Name of the model.

    Reference: Kolesnikov et al. 2020, arXiv:1912.11370, section 2.1;
        google-research/big_transfer.
    Differs: A width factor below one reduces the number of groups as well, so
        that a group has at least two channels.
    """
    width = round(ROOT_WIDTH * size.width_factor)
    groups = min(GROUPS, width // 2)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = _connect_root(images, width, size.use_small_root, dtype)
    for stage, num_units in enumerate(size.units):
        for unit in range(num_units):
            layer = PreActivationUnit(
                width * 2**stage,
                stride=2 if stage > 0 and unit == 0 else 1,
                groups=groups,
                dtype=dtype,
                name=f"stage_{stage:02d}_unit_{unit:02d}",
            )
            x = layer(x)
    x = group_norm(EPSILONS, groups, dtype=dtype, name="norm")(x)
    x = keras.layers.ReLU(dtype=dtype, name="relu")(x)
    pool = keras.layers.GlobalAveragePooling2D
    x = pool("channels_last", dtype=dtype, name="pool")(x)  # (B, C)
    if not num_classes:
        return keras.Model(images, x, name=name)
    head = keras.layers.Dense(
        num_classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(head_bias),
        dtype=dtype,
        name="predictions",
    )
    return keras.Model(images, head(x), name=name)


def _connect_root(images, width, use_small_root, dtype):
    """Return the feature map before the first stage."""
    kernel_size, stride = (3, 1) if use_small_root else (7, 2)
    x = StandardizedConv2D(
        width,
        kernel_size,
        strides=stride,
        epsilons=EPSILONS,
        use_symmetric_padding=True,
        dtype=dtype,
        name="root_conv",
    )(images)  # (B, H / 2, W / 2, C)
    if use_small_root:
        return x
    # Zeros, not the minus infinity of padded poolings: the map has not passed
    # a ReLU, so a border may be negative.
    layers = keras.layers
    x = layers.ZeroPadding2D(
        1, data_format="channels_last", dtype=dtype, name="root_pad"
    )(x)
    return layers.MaxPooling2D(
        3, 2, data_format="channels_last", dtype=dtype, name="root_pool"
    )(x)  # (B, H / 4, W / 4, C)


# Names of arrays are those of big_transfer, without the prefix "resnet/".
BIT_ROOT = "root_block/standardized_conv2d/kernel"
BIT_HEAD = ("head/conv2d/kernel", "head/conv2d/bias")
BIT_UNIT = re.compile(r"block\d/unit\d+")
MOST_LISTED_ARRAYS = 3  # That an error lists.


def find_bit(path_or_name: str) -> pathlib.Path | None:
    """Return the local file of a checkpoint of BiT; download it if needed.

    Args:
        path_or_name: A key of BIT_CHECKPOINTS, or a path or URL of a `.npz`
            file.

    Returns:
        The file, or None if it is not one of BiT.

    Raises:
        ValueError: If the file does not exist, or the name begins as those of
            BiT and is unknown.
        ConnectionError: If a download fails.
    """
    if not path_or_name.endswith(".npz"):
        if not path_or_name.startswith("BiT-"):
            return None
        file = pick(BIT_CHECKPOINTS, path_or_name, "init_from")
        return fetch(storage_url(file), cache_dir() / file)
    path = locate(path_or_name)
    with open_file(path) as checkpoint:
        is_bit = BIT_ROOT in {_plain_name(name) for name in checkpoint.arrays}
    # The hybrids of the ViT paper have no such prefix.
    return path if is_bit else None


def load_bit_checkpoint(path: pathlib.Path, **options) -> keras.Model:
    """Return the model of a `.npz` file of BiT, with its weights.

    Args:
        path: The file.
        **options: See `_build`.

    Raises:
        ValueError: If the file is damaged, an array is missing or has another
            shape, or one is left over.
    """
    with open_file(path) as checkpoint:
        stored = {}
        for name in checkpoint.arrays:
            plain = _plain_name(name)
            if plain in stored:
                raise ValueError(
                    f"{path} has two arrays for one weight: {stored[plain]} "
                    f"and {name}"
                )
            stored[plain] = name
        shapes = {
            plain: checkpoint.arrays[name].shape
            for plain, name in stored.items()
        }
        with errors_name(path):
            model, weights = _build(shapes, **options)
        checkpoint.verify([stored[name] for name in weights])
        _fill(weights, lambda name: checkpoint.read(stored[name]))
    return model


def is_bit_resnet(model: keras.Model) -> bool:
    """Return whether a model is one of `build_bit_resnet`."""
    return any(isinstance(layer, PreActivationUnit) for layer in model.layers)


def rebuild_bit_resnet(model: keras.Model, **options) -> keras.Model:
    """Return a BiT ResNet with the weights of another one.

    Args:
        model: A model of `build_bit_resnet`.
        **options: See `_build`.

    Raises:
        ValueError: If the model is another one.
    """
    weights = dict(_named_weights(model))
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    rebuilt, wanted = _build(shapes, **options)
    _fill(wanted, lambda name: keras.ops.convert_to_numpy(weights[name]))
    return rebuilt


def _build(
    shapes: dict[str, tuple],
    *,
    image_size: int,
    channels: int,
    num_classes: int,
    head: str = "auto",
    head_bias: float = 0.0,
    dtype=None,
) -> tuple[keras.Model, dict]:
    """Return a new model for arrays, and its weights to read by name."""
    size = _infer_size(shapes)
    names = {size: name for name, size in BIT_SIZES.items()}
    model = build_bit_resnet(
        size,
        image_size=image_size,
        channels=channels,
        num_classes=num_classes,
        head_bias=head_bias,
        dtype=dtype,
        name=names.get(size, "bit_resnet"),
    )
    weights = dict(_named_weights(model))
    num_stored = shapes.get(BIT_HEAD[0], (0,))[-1]
    if head == "reset" or num_stored != num_classes:
        weights = {
            name: w for name, w in weights.items() if name not in BIT_HEAD
        }
    _check_fit(shapes, weights)
    return model, weights


def _infer_size(shapes) -> BitSize:
    """Return the size of the model with arrays of `shapes`."""
    root = shapes.get(BIT_ROOT, ())
    if len(root) != 4:
        raise ValueError(
            f"it is not a BiT ResNet: resnet/{BIT_ROOT} must have four axes. "
            f"Received: shape={root or None}"
        )
    units = {"/".join(name.split("/")[:2]) for name in shapes}
    blocks = Counter(unit[5] for unit in units if BIT_UNIT.fullmatch(unit))
    counts = tuple(blocks[block] for block in sorted(blocks))
    return BitSize(counts, root[-1] / ROOT_WIDTH, use_small_root=root[0] == 3)


def _check_fit(shapes, weights):
    """Raise a ValueError unless the arrays are those of the weights."""
    missing = [name for name in weights if name not in shapes]
    left_over = [n for n in shapes if n not in weights and n not in BIT_HEAD]
    different = [
        f"{name} {shapes[name]} instead of {tuple(weight.shape)}"
        for name, weight in weights.items()
        if name in shapes
        and _essential(name, shapes[name]) != _essential(name, weight.shape)
    ]
    problems = {
        "missing": missing,
        "left over": left_over,
        "of another shape": different,
    }
    texts = [
        f"{problem}: {list_first(names, MOST_LISTED_ARRAYS)}"
        for problem, names in problems.items()
        if names
    ]
    if texts:
        raise ValueError(f"its arrays do not fit; {'; '.join(texts)}")


def _essential(name, shape):
    """Return a shape without axes of length 1, and channels of images."""
    if name == BIT_ROOT:
        shape = (*shape[:2], *shape[3:])
    return [length for length in shape if length != 1]


def _fill(weights, read: Callable[[str], np.ndarray]):
    for name, weight in weights.items():
        array = read(name)
        if name == BIT_ROOT:
            array = adapt_channels(array, weight.shape[2])
        weight.assign(array.reshape(weight.shape))


def _named_weights(model: keras.Model) -> Iterator[tuple]:
    """Yield (name of the array, weight) of each weight of a BiT ResNet."""
    for layer in model.layers:
        parts = {BIT_PREFIXES.get(layer.name): layer}
        if isinstance(layer, PreActivationUnit):
            stage, unit = map(int, re.findall(r"\d+", layer.name))
            parts = _parts_of_unit(layer, f"block{stage + 1}/unit{unit + 1:02}")
        for prefix, part in parts.items():
            for weight in part.weights if prefix else ():
                yield f"{prefix}/{weight.name}", weight


def _parts_of_unit(unit, prefix):
    parts = {}
    for letter, norm, conv in zip("abc", unit.norms, unit.convs):
        parts[f"{prefix}/{letter}/group_norm"] = norm
        parts[f"{prefix}/{letter}/standardized_conv2d"] = conv
    if unit.shortcut_conv is not None:
        parts[f"{prefix}/a/proj/standardized_conv2d"] = unit.shortcut_conv
    return parts


def _plain_name(name):
    """Return the name of an array without its prefix and running numbers.

    Some files number their convolutions, see big_vision's bit_paper.py.
    """
    name = name.removeprefix("resnet/")
    return re.sub(r"(standardized_conv2d|group_norm|conv2d)_\d+/", r"\1/", name)


BIT_PREFIXES = {
    "root_conv": "root_block/standardized_conv2d",
    "norm": "group_norm",
    "predictions": "head/conv2d",
}
# Name -> file in the bucket. S was trained on ImageNet, M on ImageNet-21k; the
# last ones were fine-tuned on ImageNet. Source: the README of
# google-research/big_transfer.
BIT_CHECKPOINTS = {
    f"BiT-{data}-{size}{ending}": f"bit_models/BiT-{data}-{size}{ending}.npz"
    for data, ending in (("S", ""), ("M", ""), ("M", "-ILSVRC2012"))
    for size in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
}


def build_baseline(
    name: str,
    *,
    image_size: int,
    channels: int,
    num_classes: int,
    dtype: str,
    head_bias: float = 0.0,
) -> keras.Model:
    """Return a new model that returns logits.

    Args:
        name: One of BASELINES.
        image_size: Side of the images, in pixels.
        channels: Channels of the images.
        num_classes: Number of logits.
        dtype: Dtype policy of the layers.
        head_bias: Initial bias of the head of a BiT ResNet.
    """
    check_name(BASELINES, name, "model")
    if name in BIT_SIZES:
        return build_bit_resnet(
            BIT_SIZES[name],
            image_size=image_size,
            channels=channels,
            num_classes=num_classes,
            head_bias=head_bias,
            dtype=dtype,
            name=name,
        )
    build = getattr(keras.applications, name)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)  # They take no argument for it.
    try:
        return build(
            weights=None,
            input_shape=(image_size, image_size, channels),
            classes=num_classes,
            classifier_activation=None,
        )
    finally:
        keras.config.set_dtype_policy(before)
