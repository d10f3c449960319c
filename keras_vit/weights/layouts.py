"""LAYOUTS: how each family of checkpoints names and shapes its weights.

One table of names for a family serves both directions. `layers_of` lists the
weights of a VisionTransformer; a table says what the family calls each layer,
and a style how it writes the weights of a layer of that kind.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_vit.layers.resnet_stem import ROOT_WIDTH
from keras_vit.models.config import ViTConfig

# ---------------------------------------------------- the weights of our model


class LayerWeights(NamedTuple):
    """The weights of one layer of a VisionTransformer.

    Args:
        template: Its path with fields for numbers, the key in the tables.
        numbers: What the fields stand for.
        kind: The key in the styles: dense, conv, norm, heads_in, ...
        shapes: The shape of each weight by name.
    """

    template: str
    numbers: dict
    kind: str
    shapes: dict[str, tuple]

    @property
    def path(self) -> str:
        """The path of the layer in the model."""
        return self.template.format(**self.numbers)


def layers_of(config: ViTConfig) -> list[LayerWeights]:
    """Return the layers of the model of `config` that have weights.

    Nothing is built: a file that claims a gigantic model costs nothing.

    Args:
        config: What the model is made of.
    """
    width = config.width
    layers = list(_stem_layers(config))
    channels = _stem_width(config) or config.channels
    patch = config.patch_size
    layers.append(_conv("patch_encoder", (patch, patch, channels, width)))
    if config.use_class_token:
        layers.append(_single("class_token", "token", (1, 1, width)))
    layers += _position_layers(config)
    for index in range(config.depth):
        block = "block_{i:02d}/"
        # keras-hub writes no number for the first of several layers.
        numbers = {"i": index, "_i": f"_{index}" if index else ""}
        layers += [
            _norm(block + "attention_norm", width, numbers),
            _heads_in(block + "attention/qkv", width, 3, numbers),
            _heads_out(block + "attention/out", width, numbers),
            _norm(block + "mlp_norm", width, numbers),
            _dense(block + "mlp/hidden", width, config.mlp_dim, numbers),
            _dense(block + "mlp/out", config.mlp_dim, width, numbers),
        ]
    if not config.use_pooling_norm:
        layers.append(_norm("encoder_norm", width))
    if config.pooling == "map":
        layers += [
            _single("pooling", "probe", (1, width)),
            _heads_in("pooling/query", width, 1),
            _heads_in("pooling/key_value", width, 2),
            _heads_out("pooling/out", width),
            _norm("pooling/norm", width),
            _dense("pooling/mlp/hidden", width, config.mlp_dim),
            _dense("pooling/mlp/out", config.mlp_dim, width),
        ]
    if config.use_pooling_norm:
        layers.append(_norm("pooling_norm", width))
    features = config.representation_size or width
    if config.representation_size:
        layers.append(_dense("pre_logits", width, features))
    if config.num_classes:
        layers.append(_dense("predictions", features, config.num_classes))
    return layers


def _dense(template, inputs, outputs, numbers=None, kind="dense"):
    shapes = {"kernel": (inputs, outputs), "bias": (outputs,)}
    return LayerWeights(template, numbers or {}, kind, shapes)


def _heads_in(template, width, count, numbers=None):
    return _dense(template, width, count * width, numbers, "heads_in")


def _heads_out(template, width, numbers=None):
    return _dense(template, width, width, numbers, "heads_out")


def _norm(template, width, numbers=None):
    shapes = {"gamma": (width,), "beta": (width,)}
    return LayerWeights(template, numbers or {}, "norm", shapes)


def _conv(template, shape):
    shapes = {"kernel": shape, "bias": shape[-1:]}
    return LayerWeights(template, {}, "conv", shapes)


def _single(template, name, shape):
    return LayerWeights(template, {}, name, {name: shape})


def _position_layers(config):
    h, w = config.grid_size
    if config.position_embedding == "learned":
        rows = h * w + config.use_class_token
        shape = (rows, config.width)
        yield _single("position_embedding", "embedding", shape)
    elif config.position_embedding == "learned_2d":
        half = config.width // 2
        shapes = {"rows": (h, half), "columns": (w, half)}
        yield LayerWeights("position_embedding", {}, "grid", shapes)


def _stem_width(config):
    """Return the channels that leave the stem, None without one."""
    if config.stem_stages is None:
        return None
    stages = len(config.stem_stages)
    return 4 * ROOT_WIDTH * 2 ** (stages - 1) if stages else ROOT_WIDTH


def _stem_layers(config) -> Iterator[LayerWeights]:
    if config.stem_stages is None:
        return
    yield _stem_conv("stem/root_conv", (7, 7, config.channels, ROOT_WIDTH))
    yield _norm("stem/root_norm", ROOT_WIDTH)
    inputs = ROOT_WIDTH
    for stage, units in enumerate(config.stem_stages):
        inner = ROOT_WIDTH * 2**stage
        outputs = 4 * inner
        for unit in range(units):
            prefix = "stem/stage_{s:02d}_unit_{u:02d}/"
            # The official code numbers from one.
            numbers = {"s": stage, "u": unit, "s1": stage + 1, "u1": unit + 1}
            convs = {
                "conv1": (1, 1, inputs, inner),
                "conv2": (3, 3, inner, inner),
                "conv3": (1, 1, inner, outputs),
            }
            if unit == 0:
                convs["shortcut_conv"] = (1, 1, inputs, outputs)
            for name, shape in convs.items():
                norm = prefix + name.replace("conv", "norm")
                yield _stem_conv(prefix + name, shape, numbers)
                yield _norm(norm, shape[-1], numbers)
            inputs = outputs


def _stem_conv(template, shape, numbers=None):
    return LayerWeights(template, numbers or {}, "stem", {"kernel": shape})


# ------------------------------------------------------------ forms and styles


class Form(NamedTuple):
    """How a weight of ours lies in a file, and back; views where possible.

    Args:
        to_file: Of our array and the number of heads.
        to_ours: Of the file's array and our shape.
    """

    to_file: Callable[[np.ndarray, int], np.ndarray]
    to_ours: Callable[[np.ndarray, tuple], np.ndarray]


def _reshaped(array, shape):
    return array.reshape(shape)


SAME = Form(lambda x, heads: x, _reshaped)
TRANSPOSED = Form(lambda x, heads: x.T, lambda x, shape: x.T)
# (rows, columns, in, out) to PyTorch's (out, in, rows, columns).
CONV = Form(
    lambda x, heads: x.transpose(3, 2, 0, 1),
    lambda x, shape: x.transpose(2, 3, 1, 0),
)
ONE_MORE_AXIS = Form(lambda x, heads: x[None], _reshaped)
# (D, D) or (D,) with the heads apart: (D, K, D/K), (K, D/K), (K, D/K, D).
SPLIT_LAST = Form(
    lambda x, heads: x.reshape(*x.shape[:-1], heads, -1), _reshaped
)
SPLIT_FIRST = Form(lambda x, heads: x.reshape(heads, -1, x.shape[1]), _reshaped)

# A style gives for each kind of layer and each weight of it what follows the
# name of the layer in the file, and the form.
Style = dict[str, dict[str, tuple[str, Form]]]


def _style(kernel, bias, gamma, beta, dense, conv, tables, heads=None) -> Style:
    """Return a style: four endings, three forms and whether heads are apart."""
    heads_in, heads_out, heads_bias = heads or (dense, dense, SAME)
    return {
        "dense": {"kernel": (kernel, dense), "bias": (bias, SAME)},
        "heads_in": {"kernel": (kernel, heads_in), "bias": (bias, heads_bias)},
        "heads_out": {"kernel": (kernel, heads_out), "bias": (bias, SAME)},
        "conv": {"kernel": (kernel, conv), "bias": (bias, SAME)},
        "stem": {"kernel": (kernel, conv)},
        "norm": {"gamma": (gamma, SAME), "beta": (beta, SAME)},
        **tables,
    }


_APART = (SPLIT_LAST, SPLIT_FIRST, SPLIT_LAST)
_TABLES = {
    "token": {"token": ("", SAME)},
    "embedding": {"embedding": ("", ONE_MORE_AXIS)},
    "probe": {"probe": ("", ONE_MORE_AXIS)},
}
_VARS = {
    "token": {"token": ("/vars/0", SAME)},
    "embedding": {"embedding": ("/vars/0", SAME)},
}
FLAX = _style(
    "/kernel", "/bias", "/scale", "/bias", SAME, SAME, _TABLES, _APART
)
TORCH = _style(
    ".weight", ".bias", ".weight", ".bias", TRANSPOSED, CONV, _TABLES
)
KERAS_H5 = _style("/kernel", "/bias", "/gamma", "/beta", SAME, SAME, _TABLES)
KERAS_VARS = _style(
    "/vars/0", "/vars/1", "/vars/0", "/vars/1", SAME, SAME, _VARS
)
KERAS_VARS_APART = _style(
    "/vars/0", "/vars/1", "/vars/0", "/vars/1", SAME, SAME, _VARS, _APART
)


# -------------------------------------------------------------------- families


class Layout(NamedTuple):
    """A family of checkpoints.

    Args:
        title: What people call it.
        style: How it writes the weights of a layer of each kind.
        names: What it calls each of our layers. Several names are the parts
            of a matrix that is one of ours, side by side.
        recognise: Names, at least one of which every file of the family has.
        unless: Names that a file of the family does not have.
        gelu: What its code computes.
        layer_norm_epsilon: What its code adds.
        stem_epsilons: What its hybrids add.
        wrappers: What may stand before every name. What is not behind a
            wrapper, while something is, belongs to a training.
        aliases: Older and newer spellings: pattern and what to read instead.
        spellings: Further spellings that can be written: pattern and what to
            write instead. The usual one, "", is that of `names`.
        spelling_of: The spelling that a configuration must be written in,
            where it is not free.
        prepare: Renames what patterns cannot; of the names and shapes.
        ignore: Names that are no weights of the model.
        optional_bias: Kinds of layers whose bias a file may lack, in all of
            the blocks; it is zero.
        slots: Rows of its position table before the grid, the usual number
            first: of a model with a class token, and of one without.
        no_table: What a file without a position table adds to the tokens;
            None if there is no such file.
        refuse: Why a configuration cannot be written; None if it can.
    """

    title: str
    style: Style
    names: dict[str, str | tuple[str, ...]]
    recognise: tuple[str, ...]
    unless: str = r"(?!)"
    gelu: str = "exact"
    layer_norm_epsilon: float = 1e-6
    stem_epsilons: str = "official"
    wrappers: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    spellings: dict[str, tuple[tuple[str, str], ...]] = {}
    spelling_of: Callable[[ViTConfig], str] | None = None
    prepare: Callable[[dict], dict] | None = None
    ignore: str = r"(?!)"
    optional_bias: tuple[str, ...] = ()
    slots: tuple[tuple[int, ...], tuple[int, ...]] = ((1,), (0,))
    no_table: str | None = None
    refuse: Callable[[ViTConfig], str | None] | None = None


class Part(NamedTuple):
    """One array of a file, for one weight of ours or a part of it.

    Args:
        name: In the file.
        form: How it lies there.
        shape: Of the part, in our form.
        optional: Whether a file may lack it.
    """

    name: str
    form: Form
    shape: tuple
    optional: bool = False

    def shape_in_file(self, num_heads: int) -> tuple:
        """Return the shape of the array in the file."""
        empty = np.broadcast_to(np.float32(0), self.shape)
        return self.form.to_file(empty, num_heads).shape


def parts_of(layout: Layout, config: ViTConfig) -> dict[str, list[Part]]:
    """Return for each weight of the model of `config` its arrays in a file.

    Args:
        layout: The family of the file.
        config: What the model is made of.

    Raises:
        ValueError: If the family has no name for a layer.
    """
    found = {}
    for layer in layers_of(config):
        names = layout.names.get(layer.template)
        if names is None or layer.kind not in layout.style:
            raise ValueError(f"{layout.title} has no name for {layer.path}.")
        names = (names,) if isinstance(names, str) else names
        for weight, shape in layer.shapes.items():
            ending, form = layout.style[layer.kind][weight]
            shape = (*shape[:-1], shape[-1] // len(names))
            optional = weight == "bias" and layer.kind in layout.optional_bias
            found[f"{layer.path}/{weight}"] = [
                Part(
                    name.format(**layer.numbers) + ending, form, shape, optional
                )
                for name in names
            ]
    return found


_BLOCK = "Transformer/encoderblock_{i}/"
_FLAX_NAMES = {
    "patch_encoder": "embedding",
    "class_token": "cls",
    "block_{i:02d}/attention_norm": _BLOCK + "LayerNorm_0",
    "encoder_norm": "Transformer/encoder_norm",
    "pre_logits": "pre_logits",
    "predictions": "head",
}


def _flax_block(attention, norm, mlp):
    """Return the names in a block, whose numbers changed over the years."""
    attention = f"{_BLOCK}MultiHeadDotProductAttention_{attention}/"
    mlp = f"{_BLOCK}MlpBlock_{mlp}/"
    return {
        "block_{i:02d}/attention/qkv": (
            attention + "query",
            attention + "key",
            attention + "value",
        ),
        "block_{i:02d}/attention/out": attention + "out",
        "block_{i:02d}/mlp_norm": f"{_BLOCK}LayerNorm_{norm}",
        "block_{i:02d}/mlp/hidden": mlp + "Dense_0",
        "block_{i:02d}/mlp/out": mlp + "Dense_1",
    }


_STACK = "Transformer/encoderblock/"
# Nearly twenty times the deepest that was published.
MAX_DEPTH = 1000
_UNIT = "stem/stage_{s:02d}_unit_{u:02d}/"
# What a training keeps beside the parameters.
_TRAINING = (
    r"(opt|opt_state|optimizer|state|step|chrono|measurements|extra)(/|$)"
)
# Between two releases of Flax the numbers of submodules went from counting
# all of them to counting those of one class.
_TO_RELEASED = (
    (r"(encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"(encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
    (
        r"(encoderblock_\d+)/MultiHeadDotProductAttention_0/",
        r"\1/MultiHeadDotProductAttention_1/",
    ),
)
_TO_LINEN = (
    (r"(encoderblock_\d+)/LayerNorm_2/", r"\1/LayerNorm_1/"),
    (r"(encoderblock_\d+)/MlpBlock_3/", r"\1/MlpBlock_0/"),
    (
        r"(encoderblock_\d+)/MultiHeadDotProductAttention_1/",
        r"\1/MultiHeadDotProductAttention_0/",
    ),
)


def _refuse_official(config):
    if config.pooling == "avg" and config.use_class_token:
        return "its average pooling goes without a class token"
    if config.pooling not in ("token", "avg", "none"):
        return f"it does not pool by {config.pooling!r}"
    if config.use_pooling_norm:
        return "its last norm comes before the pooling"
    return None


def _refuse_big_vision(config):
    if config.stem_stages is not None:
        return "its ViT has no ResNet stem"
    if config.pooling == "map" and not config.use_class_token:
        return None
    return _refuse_official(config)


def _refuse_timm(config):
    if config.representation_size:
        return "it has no pre-logits layer"
    if config.pooling == "map" and config.use_class_token:
        return "its attention pooling passes over the class token"
    return None


def _refuse_huggingface(config):
    if config.stem_stages is not None:
        return "its ViT has no ResNet stem"
    if not config.use_class_token or config.pooling not in ("token", "none"):
        return "its ViT reads the class token"
    if config.use_pooling_norm:
        return "its last norm comes before the pooling"
    if config.pooling == "none" and config.num_classes:
        return "its classifier gives one answer an image"
    if config.representation_size and config.num_classes:
        return (
            "its classifier has no pre-logits layer; without the head, "
            "`model.with_num_classes(0)`, it is written as the pooler"
        )
    return None


def _unstack(shapes):
    """Name the slices of blocks that a scan keeps in one array each."""
    stacked = {n: s for n, s in shapes.items() if n.startswith(_STACK)}
    depths = {shape[:1] for shape in stacked.values()}
    if len(depths) > 1 or any(not d or d[0] > MAX_DEPTH for d in depths):
        raise ValueError(f"the arrays below {_STACK} are not of one depth")
    renamed = {name: (name, None) for name in shapes if name not in stacked}
    for name, shape in stacked.items():
        for index in range(shape[0]):
            new = _BLOCK.format(i=index) + name.removeprefix(_STACK)
            if new in renamed:
                raise ValueError(f"{new} is stored twice, once in {name}")
            renamed[new] = (name, index)
    return renamed


def _name_dense(shapes):
    """Tell the head from the pre-logits where both are numbered `dense`.

    With two of them the head is the second. One alone is the head, unless it
    is square: no classifier has as many classes as the model is wide.
    """
    renamed = {}
    both = "layers/dense_1/vars/0" in shapes
    kernel = shapes.get("layers/dense/vars/0", ())
    alone = "pre_logits" if both or len(set(kernel)) == 1 else "predictions"
    for name in shapes:
        new = re.sub(r"^layers/dense/", f"layers/{alone}/", name)
        new = re.sub(r"^layers/dense_1/", "layers/predictions/", new)
        if new in renamed:
            raise ValueError(f"{new} is stored twice, once as {name}")
        renamed[new] = (name, None)
    return renamed


LAYOUTS = {
    "official": Layout(
        title="the official Flax code (google-research/vision_transformer)",
        style=FLAX,
        names={
            **_FLAX_NAMES,
            **_flax_block(attention=1, norm=2, mlp=3),
            "position_embedding": "Transformer/posembed_input/pos_embedding",
            "stem/root_conv": "conv_root",
            "stem/root_norm": "gn_root",
            _UNIT + "conv1": "block{s1}/unit{u1}/conv1",
            _UNIT + "conv2": "block{s1}/unit{u1}/conv2",
            _UNIT + "conv3": "block{s1}/unit{u1}/conv3",
            _UNIT + "norm1": "block{s1}/unit{u1}/gn1",
            _UNIT + "norm2": "block{s1}/unit{u1}/gn2",
            _UNIT + "norm3": "block{s1}/unit{u1}/gn3",
            _UNIT + "shortcut_conv": "block{s1}/unit{u1}/conv_proj",
            _UNIT + "shortcut_norm": "block{s1}/unit{u1}/gn_proj",
        },
        recognise=(
            "Transformer/posembed_input/pos_embedding",
            "conv_root/kernel",
        ),
        # The oldest files of big_vision have the same name for positions.
        unless=r"MAPHead_0/|probe$|Transformer/encoderblock/",
        gelu="tanh",
        wrappers=("opt/target/", "params/", "target/"),
        aliases=_TO_RELEASED,
        spellings={"linen": _TO_LINEN},
        ignore=_TRAINING,
        slots=((1, 0), (0,)),
        refuse=_refuse_official,
    ),
    "big_vision": Layout(
        title="google-research/big_vision",
        style=FLAX,
        names={
            **_FLAX_NAMES,
            **_flax_block(attention=0, norm=1, mlp=0),
            "position_embedding": "pos_embedding",
            "pooling": "MAPHead_0/probe",
            "pooling/query": "MAPHead_0/MultiHeadDotProductAttention_0/query",
            "pooling/key_value": (
                "MAPHead_0/MultiHeadDotProductAttention_0/key",
                "MAPHead_0/MultiHeadDotProductAttention_0/value",
            ),
            "pooling/out": "MAPHead_0/MultiHeadDotProductAttention_0/out",
            "pooling/norm": "MAPHead_0/LayerNorm_0",
            "pooling/mlp/hidden": "MAPHead_0/MlpBlock_0/Dense_0",
            "pooling/mlp/out": "MAPHead_0/MlpBlock_0/Dense_1",
        },
        recognise=(
            "Transformer/encoder_norm/scale",
            "Transformer/encoder_norm/bias",
        ),
        gelu="tanh",
        wrappers=("opt/target/", "params/img/", "params/", "img/"),
        aliases=(
            *_TO_LINEN,
            (r"^Transformer/(posembed_input/)?pos_embedding$", "pos_embedding"),
            (
                r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/"
                r"|LayerNorm_0/)",
                r"MAPHead_0/\1",
            ),
        ),
        spellings={"scan": ()},
        prepare=_unstack,
        ignore=rf"{_TRAINING}|params/(txt/|t$|b$)|(txt/|t$|b$)",
        # Older files have a row for the class token, even without one.
        slots=((0, 1), (0, 1)),
        no_table="sincos_2d",
        refuse=_refuse_big_vision,
    ),
    "timm": Layout(
        title="timm (huggingface/pytorch-image-models)",
        style=TORCH,
        names={
            "patch_encoder": "patch_embed.proj",
            "class_token": "cls_token",
            "position_embedding": "pos_embed",
            "block_{i:02d}/attention_norm": "blocks.{i}.norm1",
            "block_{i:02d}/attention/qkv": "blocks.{i}.attn.qkv",
            "block_{i:02d}/attention/out": "blocks.{i}.attn.proj",
            "block_{i:02d}/mlp_norm": "blocks.{i}.norm2",
            "block_{i:02d}/mlp/hidden": "blocks.{i}.mlp.fc1",
            "block_{i:02d}/mlp/out": "blocks.{i}.mlp.fc2",
            "encoder_norm": "norm",
            "pooling_norm": "fc_norm",
            "pooling": "attn_pool.latent",
            "pooling/query": "attn_pool.q",
            "pooling/key_value": "attn_pool.kv",
            "pooling/out": "attn_pool.proj",
            "pooling/norm": "attn_pool.norm",
            "pooling/mlp/hidden": "attn_pool.mlp.fc1",
            "pooling/mlp/out": "attn_pool.mlp.fc2",
            "predictions": "head",
            "stem/root_conv": "patch_embed.backbone.stem.conv",
            "stem/root_norm": "patch_embed.backbone.stem.norm",
            **{
                _UNIT + ours: "patch_embed.backbone.stages.{s}.blocks.{u}." + x
                for ours, x in (
                    ("conv1", "conv1"),
                    ("conv2", "conv2"),
                    ("conv3", "conv3"),
                    ("norm1", "norm1"),
                    ("norm2", "norm2"),
                    ("norm3", "norm3"),
                    ("shortcut_conv", "downsample.conv"),
                    ("shortcut_norm", "downsample.norm"),
                )
            },
        },
        recognise=("patch_embed.proj.weight",),
        stem_epsilons="timm",
        wrappers=("module.", "model.", "_orig_mod.", "state_dict."),
        # A stem of the root alone is not nested.
        aliases=(
            (
                r"^patch_embed\.backbone\.(conv|norm)\.",
                r"patch_embed.backbone.stem.\1.",
            ),
        ),
        spellings={"root": ((r"\.backbone\.stem\.", ".backbone."),)},
        spelling_of=lambda config: "root" if config.stem_stages == () else "",
        ignore=r"(mask_token|optimizer|epoch)$",
        optional_bias=("heads_in",),
        slots=((1, 0), (0,)),
        refuse=_refuse_timm,
    ),
    "huggingface": Layout(
        title="Hugging Face transformers",
        style=TORCH,
        names={
            "patch_encoder": "vit.embeddings.patch_embeddings.projection",
            "class_token": "vit.embeddings.cls_token",
            "position_embedding": "vit.embeddings.position_embeddings",
            "block_{i:02d}/attention_norm": (
                "vit.encoder.layer.{i}.layernorm_before"
            ),
            "block_{i:02d}/attention/qkv": (
                "vit.encoder.layer.{i}.attention.attention.query",
                "vit.encoder.layer.{i}.attention.attention.key",
                "vit.encoder.layer.{i}.attention.attention.value",
            ),
            "block_{i:02d}/attention/out": (
                "vit.encoder.layer.{i}.attention.output.dense"
            ),
            "block_{i:02d}/mlp_norm": "vit.encoder.layer.{i}.layernorm_after",
            "block_{i:02d}/mlp/hidden": (
                "vit.encoder.layer.{i}.intermediate.dense"
            ),
            "block_{i:02d}/mlp/out": "vit.encoder.layer.{i}.output.dense",
            "encoder_norm": "vit.layernorm",
            "pre_logits": "vit.pooler.dense",
            "predictions": "classifier",
        },
        recognise=(
            "vit.embeddings.patch_embeddings.projection.weight",
            "embeddings.patch_embeddings.projection.weight",
        ),
        layer_norm_epsilon=1e-12,
        wrappers=("module.", "model."),
        # A model without a head goes without the prefix; version 5 renamed
        # modules in memory, so that a raw state dict has other names.
        aliases=(
            (
                r"^(?=embeddings\.|encoder\.|layers\.|layernorm\.|pooler\.)",
                "vit.",
            ),
            (r"^vit\.layers\.", "vit.encoder.layer."),
            (r"\.attention\.q_proj\.", ".attention.attention.query."),
            (r"\.attention\.k_proj\.", ".attention.attention.key."),
            (r"\.attention\.v_proj\.", ".attention.attention.value."),
            (r"\.attention\.o_proj\.", ".attention.output.dense."),
            (r"\.mlp\.fc1\.", ".intermediate.dense."),
            (r"\.mlp\.fc2\.", ".output.dense."),
        ),
        spellings={"headless": ((r"^vit\.", ""),)},
        spelling_of=lambda config: "" if config.num_classes else "headless",
        ignore=r"vit\.embeddings\.(mask_token|position_ids)$",
        optional_bias=("heads_in",),
        refuse=_refuse_huggingface,
    ),
    "keras_hub": Layout(
        title="keras-hub",
        style=KERAS_VARS_APART,
        names={
            "patch_encoder": (
                "layers/vi_t_patching_and_embedding/patch_embedding"
            ),
            "class_token": "layers/vi_t_patching_and_embedding",
            "position_embedding": (
                "layers/vi_t_patching_and_embedding/position_embedding"
            ),
            **{
                "block_{i:02d}/" + ours: (
                    "layers/vi_t_encoder/encoder_layers/"
                    "vi_t_encoder_block{_i}/" + x
                )
                for ours, x in (
                    ("attention_norm", "layer_norm_1"),
                    ("attention/out", "mha/output_dense"),
                    ("mlp_norm", "layer_norm_2"),
                    ("mlp/hidden", "mlp/dense_1"),
                    ("mlp/out", "mlp/dense_2"),
                )
            },
            "block_{i:02d}/attention/qkv": tuple(
                "layers/vi_t_encoder/encoder_layers/"
                f"vi_t_encoder_block{{_i}}/mha/{x}_dense"
                for x in ("query", "key", "value")
            ),
            "encoder_norm": "layers/vi_t_encoder/layer_norm",
            "pre_logits": "layers/pre_logits",
            "predictions": "layers/predictions",
        },
        recognise=(
            "layers/vi_t_patching_and_embedding/patch_embedding/vars/0",
            "layers/vi_t_backbone/layers/vi_t_patching_and_embedding/"
            "patch_embedding/vars/0",
        ),
        aliases=((r"^layers/vi_t_backbone/layers/", "layers/"),),
        prepare=_name_dense,
        ignore=r"optimizer/|seed_generator",
        optional_bias=("heads_in",),
    ),
    "vit_keras": Layout(
        title="vit-keras (.weights.h5)",
        style=KERAS_VARS,
        names={
            "patch_encoder": "layers/conv2d",
            "class_token": "layers/class_token",
            "position_embedding": "layers/add_position_embs",
            **{
                "block_{i:02d}/" + ours: "layers/transformer_block{_i}/" + x
                for ours, x in (
                    ("attention_norm", "layernorm1"),
                    ("attention/out", "att/combine_heads"),
                    ("mlp_norm", "layernorm2"),
                    ("mlp/hidden", "mlpblock/layers/dense"),
                    ("mlp/out", "mlpblock/layers/dense_1"),
                )
            },
            "block_{i:02d}/attention/qkv": tuple(
                f"layers/transformer_block{{_i}}/att/{x}_dense"
                for x in ("query", "key", "value")
            ),
            "encoder_norm": "layers/layer_normalization",
            "pre_logits": "layers/pre_logits",
            "predictions": "layers/predictions",
        },
        recognise=("layers/add_position_embs/vars/0",),
        prepare=_name_dense,
        ignore=r"optimizer/|.*seed_generator",
    ),
    "vit_keras_h5": Layout(
        title="vit-keras (.h5)",
        style=KERAS_H5,
        names={
            "patch_encoder": "embedding",
            "class_token": "class_token/cls",
            "position_embedding": "posembed_input/pos_embedding",
            **{
                "block_{i:02d}/" + ours: "encoderblock_{i}/" + x
                for ours, x in (
                    ("attention_norm", "LayerNorm_0"),
                    ("attention/out", "MultiHeadDotProductAttention_1/out"),
                    ("mlp_norm", "LayerNorm_2"),
                    ("mlp/hidden", "MlpBlock_3/Dense_0"),
                    ("mlp/out", "MlpBlock_3/Dense_1"),
                )
            },
            "block_{i:02d}/attention/qkv": tuple(
                f"encoderblock_{{i}}/MultiHeadDotProductAttention_1/{x}"
                for x in ("query", "key", "value")
            ),
            "encoder_norm": "encoder_norm",
            "pre_logits": "pre_logits",
            "predictions": "head",
        },
        recognise=(
            "embedding/embedding/kernel",
            "embedding/embedding/kernel:0",
        ),
        wrappers=("model_weights/",),
        # The layer, then the weight, whose name begins with that of the layer.
        aliases=(
            (r":0$", ""),
            (r"^(.+?)/\1/", r"\1/"),
            (r"^Transformer[/_]", ""),
            (r"/MlpBlock_3/.*?(Dense_\d/)", r"/MlpBlock_3/\1"),
            (r"^(encoderblock_\d+)/Dense_", r"\1/MlpBlock_3/Dense_"),
        ),
        ignore=r"optimizer_weights/|top_level_model_weights",
    ),
}

# Names of what a VisionTransformer does not have, and what they stand for.
FOREIGN_PARTS = (
    (r"dist_token|distillation_token|head_dist", "a distillation token"),
    (r"reg_token|register_token", "register tokens"),
    (r"\bls[12]\b|layer_scale|lambda_?[12]|gamma_[12]", "LayerScale"),
    (r"\b[qk]_norm\b|query_norm|key_norm", "a norm of queries and keys"),
    (r"norm_pre\b|ln_pre\b", "a norm before the first block"),
    (r"rel_pos|relative_position", "relative positions"),
    (r"rope|freqs", "rotary positions"),
    (r"w12|fc1_g|swiglu|weights_in", "a gated MLP"),
    (r"lora_", "LoRA adapters, to be merged first"),
    (r"decoder", "a decoder of masked patches"),
    (r"txt|text", "a text tower"),
)


def foreign_parts(names) -> list[str]:
    """Return what the given names tell of a model that is not a plain ViT."""
    return [
        f"{what} ({found})"
        for pattern, what in FOREIGN_PARTS
        for found in [next((n for n in names if re.search(pattern, n)), None)]
        if found
    ]
