"""VisionTransformer: the model, a functional graph of named layers.

`connect_layers` is the graph, from images to outputs.
"""

import functools
import numbers
from collections.abc import Callable, Iterable, Iterator

import keras

from keras_vit.layers import kernels
from keras_vit.layers.base import (
    InnerLayers,
    policy_at,
    refuse_quantized,
    wide,
    wide_policy_at,
)
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.fewer_tokens import PatchDropout, TokenSizes
from keras_vit.layers.norms import NORMS, UnitNorm
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.relative import RELATIVE_POSITIONS
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.rotary import ROTARY_POSITIONS
from keras_vit.layers.tokens import (
    ClassToken,
    PatchEncoder,
    PatchGrid,
    PrefixTokens,
)
from keras_vit.models.config import CHOICES, ViTConfig
from keras_vit.models.tuning import TunableModel, copy_model, train_layer


def connect_layers(
    config: ViTConfig, images, dtype=None, inner: InnerLayers | None = None
):
    """Return the output of a new model of `config` for `images`.

    `dtype` is the policy of its layers, and `inner` makes them; by default, as
    they are new.

    Shapes:
        images: a symbolic tensor (B, H, W, C).
    """
    inner = inner or InnerLayers(dtype)
    epsilon = config.layer_norm_epsilon
    norm = functools.partial(inner, NORMS[config.norm], epsilon=epsilon)
    features = images
    if config.stem_stages is not None:
        stages, epsilons = config.stem_stages, config.stem_epsilons
        stem = inner(ResNetStem, "stem", stages, epsilons)
        features = stem(images)  # (B, H', W', C')
    patch_encoder = inner(
        PatchEncoder,
        "patch_encoder",
        config.patch_size,
        config.width,
        use_bias=config.use_patch_bias,
        ignore_border=config.ignore_border,
    )
    x = patch_encoder(features)  # (B, N, D)
    if config.use_patch_norm:
        x = norm("patch_norm")(x)
    # What tells the grid of the patches, if it is not known before the call.
    grid = (features,) if config.use_dynamic_image_size else ()
    embedding = None
    if config.position_placement == "stem":
        make = chosen_layer(config, "position_embedding")
        embedding = make and inner(make, "position_embedding")
    if embedding and not config.use_prefix_positions:
        x = embedding(x, *grid)
    if config.num_registers:
        x = inner(PrefixTokens, "registers", config.num_registers)(x)
    if config.use_distillation_token:
        x = inner(PrefixTokens, "distillation_token", 1)(x)
    if config.use_class_token:
        x = inner(ClassToken, "class_token")(x)  # (B, T, D)
    if embedding and config.use_prefix_positions:
        x = embedding(x, *grid)
    if config.use_embedding_norm:
        x = norm("embedding_norm")(x)
    if config.dropout_rate:
        x = inner(keras.layers.Dropout, "dropout", config.dropout_rate)(x)
    rows, positions = position_layers(config), {}
    for name in (name for row in rows for name in row.values()):
        if name not in positions:
            # A layer has the name of its field, and the index of its block.
            make = chosen_layer(config, name.rstrip("_0123456789"))
            positions[name] = inner(make, name)(x, *grid)
    if config.patch_dropout_rate:
        by_argument = {}
        for argument, name in (pair for row in rows for pair in row.items()):
            by_argument.setdefault(argument, {})[name] = positions[name]
        rate, prefix = config.patch_dropout_rate, config.num_prefix_tokens
        drop = inner(PatchDropout, "patch_dropout", rate, prefix)
        x, found = drop(x, by_argument)
        positions = {
            k: value for row in found.values() for k, value in row.items()
        }
    sizes = (
        inner(TokenSizes, "token_sizes")(x) if config.merged_tokens else None
    )
    for index, row in enumerate(rows):
        block = inner(TransformerBlock, **block_options(config, index))
        tensors = {key: positions[name] for key, name in row.items()}
        if sizes is None:
            x = block(x, **tensors)
        else:
            x, sizes = block(x, **tensors, sizes=sizes)
    if config.use_final_norm and not config.use_pooling_norm:
        x = norm("encoder_norm")(x)
    if make := chosen_layer(config, "pooling"):
        pooling = inner(make, "pooling")
        is_weighed = sizes is not None and pooling.weighs_tokens
        x = pooling(x, sizes=sizes) if is_weighed else pooling(x)  # (B, D)
    if config.use_final_norm and config.use_pooling_norm:
        x = norm("pooling_norm")(x)
    if config.representation_size:
        pre_logits = inner(
            keras.layers.Dense,
            "pre_logits",
            config.representation_size,
            activation="tanh" if config.representation == "tanh" else None,
            kernel_initializer="lecun_normal",
            dtype=policy_at(dtype, "pre_logits"),
        )
        x = pre_logits(x)  # (B, R)
    if config.representation == "unit":
        # The head computes in it.
        kind = wide(keras.dtype_policies.get(dtype).compute_dtype)
        x = inner(UnitNorm, "unit_norm", dtype=kind)(x)
    if not config.num_classes:
        return x
    options = {
        "activation": config.classifier_activation,
        "dtype": wide_policy_at(dtype, "predictions"),
    }
    head_class = getattr(POOLINGS[config.pooling], "head_class", None)
    if head_class:
        options["head_bias"] = config.head_bias
    else:
        head_class, bias = keras.layers.Dense, config.head_bias
        options["kernel_initializer"] = "zeros"  # As in the official code.
        options["bias_initializer"] = keras.initializers.Constant(bias)
    return inner(head_class, "predictions", config.num_classes, **options)(x)


def block_options(config: ViTConfig, index: int) -> dict:
    """Return the arguments of block `index`.

    The rate of the stochastic depth grows with the index.
    """
    depth_rate = config.stochastic_depth_rate * index
    rotary = ROTARY_POSITIONS[config.rotary_positions]
    return {
        "name": f"block_{index:02d}",
        "num_heads": config.num_heads,
        "mlp_dim": config.mlp_dim,
        "dropout_rate": config.dropout_rate,
        "attention_dropout_rate": config.attention_dropout_rate,
        "stochastic_depth_rate": depth_rate / max(config.depth - 1, 1),
        "activation": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "use_remat": config.use_remat,
        "norm": config.norm,
        "norm_placement": config.norm_placement,
        "layer_scale_init": config.layer_scale_init,
        "layer_scale_branches": config.layer_scale_branches,
        "merged_tokens": config.merged_tokens,
        "num_prefix_tokens": config.num_prefix_tokens,
        "attention_options": {
            "qkv_bias": config.qkv_bias,
            "use_out_bias": config.use_block_bias,
            "qk_norm": config.qk_norm,
            "norm": config.norm,
            "use_inner_norm": config.use_attention_inner_norm,
            "rotary_pairs": rotary.pairs if rotary else "halves",
        },
        "mlp_options": {
            "is_gated": config.use_gated_mlp,
            "norm": config.norm,
            "use_inner_norm": config.use_mlp_inner_norm,
            "use_bias": config.use_block_bias,
        },
    }


def position_layers(config: ViTConfig) -> list[dict[str, str]]:
    """Return the names of the layers that feed each block, by argument.

    A layer that all blocks share has its own name; another one ends with the
    index of the block.

    Example:
        >>> import dataclasses
        >>> config = VARIANTS["Ti/16"].config
        >>> config = dataclasses.replace(
        ...     config, depth=2, rotary_positions="axial",
        ...     relative_positions="table",
        ... )
        >>> for row in models.vit.position_layers(config):
        ...     print(row)
        {'rotation': 'rotary_positions', 'bias': 'relative_positions_00'}
        {'rotation': 'rotary_positions', 'bias': 'relative_positions_01'}
    """
    found = {}
    if rotary := ROTARY_POSITIONS[config.rotary_positions]:
        found["rotation"] = "rotary_positions", rotary.is_shared
    if relative := RELATIVE_POSITIONS[config.relative_positions]:
        is_shared = config.use_shared_relative_positions
        found[relative.argument] = "relative_positions", is_shared
    if config.position_placement != "stem":
        is_shared = config.position_placement == "every_block_shared"
        found["position_rows"] = "position_embedding", is_shared
    return [
        {
            argument: name if is_shared else f"{name}_{index:02d}"
            for argument, (name, is_shared) in found.items()
        }
        for index in range(config.depth)
    ]


def chosen_layer(config: ViTConfig, field: str) -> Callable | None:
    """Return a function that makes the layer which a field names, or None.

    It takes further arguments of the layer, such as `name`. What it gives to
    the layer are the fields in TAKEN_FIELDS and in the `needs` of its class,
    each under its name, or without the first word if that is the word of the
    field: `rotary_positions="axial"` takes `rotary_axes` as `axes`.
    """
    layer_class = CHOICES[field][getattr(config, field)]
    if layer_class is None:
        return None
    values = {
        **vars(config),
        "grid_size": config.grid_size,
        "head_size": config.head_size,
        "num_prefix_tokens": config.num_prefix_tokens,
        "returns_rows": config.position_placement != "stem",
    }
    if field == "position_embedding":
        values["num_prefix_tokens"] *= config.use_prefix_positions
    if field == "pooling":
        values["num_heads"] = config.pooling_heads or config.num_heads
        values["mlp_dim"] = config.pooling_mlp_dim or config.mlp_dim
    names = (*TAKEN_FIELDS[field], *getattr(layer_class, "needs", ()))
    word = field.partition("_")[0] + "_"
    options = {name.removeprefix(word): values[name] for name in names}
    return functools.partial(layer_class, **options)


# What all layers of a field take from the configuration.
PLACES = ("grid_size", "num_prefix_tokens", "patch_size")
TAKEN_FIELDS = {
    "position_embedding": (*PLACES, "position_resize", "returns_rows"),
    "rotary_positions": (*PLACES, "head_size"),
    "relative_positions": ("grid_size", "num_prefix_tokens", "num_heads"),
    "pooling": (),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(TunableModel):
    """A Vision Transformer: patches, positions, Transformer blocks, head.

    Every step is a named layer (`patch_encoder`, `block_00`, ...,
    `encoder_norm`, `predictions`), so a sub-model returns any intermediate
    result; `features` returns the patches after each block. Methods called
    `with_...` return a changed copy.

    Shapes:
        images: (B, H, W, C), floats; see `preprocess_input`.
        returns: (B, num_classes); without a head (B, D); without pooling
            (B, T, ...).

    Args:
        config: The configuration of the model.
        dtype: Dtype policy of the layers; None for Keras' global policy. Under
            mixed precision, the head returns float32.
        name: Name of the model.
        trainable: Whether the weights are trained.
        edits: What users have changed on layers, as in `get_config`: their
            activations, dropout rates, epsilons, regularisers.

    Example:
        >>> config = ViTConfig(
        ...     width=24, depth=2, mlp_dim=48, num_heads=3, patch_size=8,
        ...     image_size=32, num_classes=7,
        ... )
        >>> model = VisionTransformer(config)
        >>> tuple(model(np.ones((2, 32, 32, 3))).shape)
        (2, 7)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929.
    """

    configurations = {"config": ViTConfig}

    def __init__(
        self,
        config: ViTConfig,
        dtype=None,
        name: str = "vision_transformer",
        trainable: bool = True,
        edits: dict | None = None,
    ):
        policy = keras.dtype_policies.get(dtype)
        inner = InnerLayers(policy, edits or {})
        size = config.image_size
        size = (None, None) if config.use_dynamic_image_size else size
        is_double = wide(policy.compute_dtype) == "float64"
        images = keras.Input(
            (*size, config.channels),
            dtype="float64" if is_double else None,
            name="images",
        )
        super().__init__(
            inputs=images,
            outputs=connect_layers(config, images, policy, inner),
            name=name,
            trainable=trainable,
        )
        self.dtype_policy = policy
        self.config = config
        self.inner = inner

    if kernels.run_graph:

        def call(self, inputs, training=None, mask=None):
            outputs = kernels.run_graph(self, inputs, training)
            if outputs is None:
                return super().call(inputs, training=training, mask=mask)
            return outputs

    def features(
        self,
        images,
        blocks: Iterable[int] | None = None,
        as_grid: bool = True,
        norm: bool = True,
        with_prefix: bool = False,
    ) -> list:
        """Return the patches after blocks, as images of features.

        With symbolic images, the result is symbolic: part of a graph of
        layers, which can be trained, saved and exported.

        Shapes:
            images: (B, H, W, C).
            returns: (B, h, w, D) for each block, or (B, h * w, D).

        Args:
            images: Images, or a symbolic tensor of them.
            blocks: Indices of the blocks, counted from 0; negative ones count
                from the end. Default: all blocks.
            as_grid: Whether the patches are arranged as in the image.
            norm: Whether the last norm of the model is applied to each, as far
                as it has one before its pooling.
            with_prefix: Whether to return pairs: the patches, and the tokens
                before them (B, P, D).

        Raises:
            ValueError: If `blocks` names no block, or one that is not there;
                if the model merges tokens, or leaves some out in training and
                the images are symbolic.

        Example:
            >>> model = VisionTransformer(VARIANTS["mu/16"].config)
            >>> images = np.zeros((2, 224, 224, 3), "float32")
            >>> [tuple(x.shape) for x in model.features(images, blocks=(0, -1))]
            [(2, 14, 14, 32), (2, 14, 14, 32)]
        """
        config = self.config
        check_has_all_patches(self)
        if config.patch_dropout_rate and isinstance(images, keras.KerasTensor):
            raise ValueError(
                "The features of symbolic images may be trained, so the model "
                "must not leave out patches; use `model.with_patch_dropout(0)`."
                f" Received: patch_dropout_rate={config.patch_dropout_rate}"
            )
        layers = {layer.name: layer for layer in self.layers}
        tokens = [
            layers[f"block_{index:02d}"].output
            for index in block_indices(config.depth, blocks, "blocks")
        ]
        if images is not self.input:
            tokens = keras.Model(self.input, tokens)(images)
        tokens = tokens if isinstance(tokens, list) else [tokens]
        if norm and "encoder_norm" in layers:
            tokens = [layers["encoder_norm"](x) for x in tokens]
        prefix, stride = config.num_prefix_tokens, config.stem_stride
        arrange = PatchGrid(config.patch_size * stride, stride)
        found = []
        for x in tokens:
            patches = x[:, prefix:]
            if as_grid and config.use_dynamic_image_size:
                patches = arrange(patches, images)
            elif as_grid:
                shape = (-1, *config.grid_size, patches.shape[-1])
                patches = kernels.reshape(patches, shape)
            found.append((patches, x[:, :prefix]) if with_prefix else patches)
        return found

    def with_num_classes(self, num_classes: int):
        """Return this model with a new head for `num_classes` classes.

        All layers before the head are copied. The kernel of the head is zero,
        and the head is trainable, without LoRA, even if all else is frozen.

        Args:
            num_classes: Outputs of the new head; 0 for none.

        Raises:
            ValueError: If the model is quantised: so would be the new head,
                which could not be trained.
        """
        if num_classes:
            advice = "give the one that it was made from a new head"
            refuse_quantized(self, advice)
        changes = {"class_names": None, "probabilities": None}
        model = copy_model(
            self, ["predictions"], num_classes=num_classes, **changes
        )
        if num_classes:
            train_layer(model, "predictions")
        return model

    def with_merged_tokens(self, merged_tokens: int):
        """Return this model with fewer and fewer tokens, which is faster.

        The weights are the same, and no training is needed. Outputs differ the
        more, the more tokens are merged.

        Args:
            merged_tokens: Number of patches that each block merges with
                similar ones; 0 for none.

        Example:
            >>> model = VisionTransformer(VARIANTS["mu/16"].config)
            >>> fast = model.with_merged_tokens(13)
            >>> fast.get_layer("block_00").output[0].shape  # Of 196.
            (None, 183, 32)

        Reference: Bolya et al. 2023, Token Merging, arXiv:2210.09461.
        """
        return copy_model(self, merged_tokens=merged_tokens)

    def with_patch_dropout(self, rate: float):
        """Return this model, whose training leaves out a share of the patches.

        Args:
            rate: The share, see `PatchDropout`; 0 for none.
        """
        return copy_model(self, patch_dropout_rate=rate)

    def with_classifier_activation(self, classifier_activation: str | None):
        """Return this model with another activation; None for logits."""
        return copy_model(self, classifier_activation=classifier_activation)


def block_indices(
    depth: int, chosen: Iterable[int] | None, argument: str
) -> list[int]:
    """Return chosen indices of blocks, counted from 0.

    Args:
        depth: Number of blocks.
        chosen: The indices; negative ones count from the end. None for all.
        argument: Name of the caller's argument, for the error.

    Raises:
        ValueError: If `chosen` is no list of indices of blocks.
    """
    if chosen is None:
        return list(range(depth))
    indices = list(chosen) if isinstance(chosen, Iterable) else []
    if not indices or not all(
        isinstance(i, numbers.Integral) and -depth <= i < depth for i in indices
    ):
        raise ValueError(
            f"`{argument}` must be a list of indices from {-depth} to "
            f"{depth - 1}, since the model has {depth} blocks, or None for "
            f"all of them. Received: {argument}={chosen!r}"
        )
    return [index % depth for index in indices]


def check_vision_transformer(model):
    """Raise a ValueError unless `model` is a VisionTransformer.

    If a VisionTransformer is part of `model`, the message names the call that
    returns it.
    """
    if isinstance(model, VisionTransformer):
        return
    advice, calls = "", list(find_vision_transformers(model))
    # Other models of this package have their configurations.
    is_plain = not isinstance(model, TunableModel)
    is_plain &= isinstance(model, keras.Model)
    layers = model.layers if is_plain else ()
    if calls:
        advice = f" Pass the one inside of it: {' or '.join(calls)}."
    elif any(isinstance(layer, PatchEncoder) for layer in layers):
        advice = (
            " This model has the layers of one but no configuration, as after "
            "`keras.models.clone_model`. Copy the original with "
            "`keras_vit.VisionTransformer.from_config(model.get_config())`."
        )
    raise ValueError(
        "`model` must be a keras_vit.VisionTransformer."
        f"{advice} Received: {type(model).__name__}"
    )


def check_has_all_patches(model: VisionTransformer):
    """Raise a ValueError if the blocks of `model` merge patches."""
    if model.config.merged_tokens:
        raise ValueError(
            "`model` must not merge tokens, because each patch is looked at; "
            "use `model.with_merged_tokens(0)`. "
            f"Received: merged_tokens={model.config.merged_tokens}"
        )


def find_vision_transformers(model, call: str = "model") -> Iterator[str]:
    """Yield the call that returns each VisionTransformer inside `model`.

    `call` is a Python expression for `model`.

    Example:
        >>> vit = VisionTransformer(VARIANTS["mu/16"].config)
        >>> model = keras.Sequential([vit])
        >>> list(find_vision_transformers(model))
        ["model.get_layer('vision_transformer')"]
    """
    if not isinstance(model, keras.Model):
        return
    for layer in model.layers:
        inner = f"{call}.get_layer({layer.name!r})"
        if isinstance(layer, VisionTransformer):
            yield inner
        else:
            yield from find_vision_transformers(layer, inner)
