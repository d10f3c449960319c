"""VisionTransformer: the model, a functional graph of named layers."""

import dataclasses
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.dtypes import (
    float32_unless_quantized,
    is_quantized,
    nested_dtype_policy,
    policy_at,
)
from keras_vit.layers.kernels import call_layer
from keras_vit.layers.norms import make_norm
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.positions import make_position_embedding
from keras_vit.layers.relative import RELATIVE_POSITIONS
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.rotary import ROTARY_POSITIONS
from keras_vit.layers.tokens import ClassToken, PrefixTokens
from keras_vit.models.config import ViTConfig
from keras_vit.models.tuning import (
    add_lora,
    copy_model,
    describe_frozen,
    freeze_again,
    in_last_blocks,
    keeping,
    layers_with_lora,
    set_trained,
    train_layer,
)
from keras_vit.tables import pick


def make_chosen(
    table: Mapping, kind: str, argument: str, choices: Mapping, **kwargs
):
    """Return a new layer, or None if the row of the table is None.

    The `needs` of a layer lists the choices that its constructor takes, under
    the name of the argument without `PREFIX_`, for a table `PREFIX_...`.

    Args:
        table: Layers by kind.
        kind: A key of the table.
        argument: Name of the caller's argument, for the error.
        choices: The fields of ViTConfig, and others.
        **kwargs: Further arguments of the layer, such as `name`.

    Raises:
        ValueError: If the table has no such row.
    """
    layer_class = pick(table, kind, argument)
    if layer_class is None:
        return None
    prefix = argument.partition("_")[0] + "_"
    needs = {n.removeprefix(prefix): choices[n] for n in layer_class.needs}
    return layer_class(**needs, **kwargs)


def position_templates(config) -> dict[str, str]:
    """Return the names of layers by the arguments of a block that they compute.

    A layer that all blocks share has its own name; another one has a field for
    the index of the block.

    Args:
        config: The configuration of the model.
    """
    names = {}
    if rotary := ROTARY_POSITIONS[config.rotary_positions]:
        names["rotation"] = _template("rotary_positions", rotary.is_shared)
    if relative := RELATIVE_POSITIONS[config.relative_positions]:
        is_shared = config.use_shared_relative_positions
        names[relative.argument] = _template("relative_positions", is_shared)
    if config.position_placement != "stem":
        is_shared = config.position_placement == "every_block_shared"
        names["position_rows"] = _template("position_embedding", is_shared)
    return names


def position_layers(config) -> list[dict[str, str]]:
    """Return the names of the layers that feed each block, by argument.

    Args:
        config: The configuration of the model.

    Example:
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
    names = position_templates(config).items()
    return [
        {argument: name.format(i=index) for argument, name in names}
        for index in range(config.depth)
    ]


def connect_positions(config, tokens, features, dtype) -> list[dict]:
    """Return the position inputs of each block: tensors, by argument.

    Args:
        config: The configuration of the model.
        tokens: The input of the first block.
        features: The images or the feature maps that were cut into patches.
        dtype: Dtype policy of the layers.
    """
    tensors = {}
    rows = position_layers(config)
    for argument, name in (item for row in rows for item in row.items()):
        if name not in tensors:
            layer = MAKERS[argument](config, name, dtype)
            is_dynamic = config.use_dynamic_image_size
            inputs = (tokens, features) if is_dynamic else (tokens,)
            tensors[name] = layer(*inputs)
    return [{key: tensors[name] for key, name in row.items()} for row in rows]


def _template(name, is_shared):
    return name if is_shared else name + "_{i:02d}"


def _make_rotary(config, name, dtype=None):
    return make_chosen(
        ROTARY_POSITIONS,
        config.rotary_positions,
        "rotary_positions",
        dataclasses.asdict(config),
        grid_size=config.grid_size,
        head_size=config.head_size,
        num_prefix_tokens=config.num_prefix_tokens,
        patch_size=config.patch_size,
        dtype=dtype,
        name=name,
    )


def _make_relative(config, name, dtype=None):
    return make_chosen(
        RELATIVE_POSITIONS,
        config.relative_positions,
        "relative_positions",
        dataclasses.asdict(config),
        grid_size=config.grid_size,
        num_heads=config.num_heads,
        num_prefix_tokens=config.num_prefix_tokens,
        dtype=dtype,
        name=name,
    )


def _make_rows(config, name, dtype=None):
    return make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=config.num_prefix_tokens,
        patch_size=config.patch_size,
        resize=config.position_resize,
        returns_rows=True,
        dtype=dtype,
        name=name,
    )


MAKERS = {
    "rotation": _make_rotary,
    "bias": _make_relative,
    "relative_keys": _make_relative,
    "position_rows": _make_rows,
}


def stem(config, dtype):
    """Return the ResNet before the patches of a hybrid."""
    return ResNetStem(
        config.stem_stages, config.stem_epsilons, dtype=dtype, name="stem"
    )


def patch_encoder(config, dtype):
    """Return the projection of the patches."""
    return PatchEncoder(
        config.patch_size,
        config.width,
        use_bias=config.use_patch_bias,
        ignore_border=config.ignore_border,
        dtype=dtype,
        name="patch_encoder",
    )


def add_prefix_and_positions(config, tokens, features, dtype):
    """Return the patches after the prefix tokens, with positions added."""
    if not config.use_prefix_positions:
        tokens = add_positions(config, tokens, features, dtype)
    if config.num_registers:
        tokens = PrefixTokens(
            config.num_registers, dtype=dtype, name="registers"
        )(tokens)
    if config.use_distillation_token:
        tokens = PrefixTokens(1, dtype=dtype, name="distillation_token")(tokens)
    if config.use_class_token:
        tokens = ClassToken(dtype=dtype, name="class_token")(tokens)
    if config.use_prefix_positions:
        tokens = add_positions(config, tokens, features, dtype)
    return tokens  # (B, T, D)


def stem_positions(config, dtype=None):
    """Return the position embedding before the first block, or None."""
    if config.position_placement != "stem":
        return None
    has_prefix = config.use_prefix_positions
    return make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=config.num_prefix_tokens if has_prefix else 0,
        patch_size=config.patch_size,
        resize=config.position_resize,
        dtype=dtype,
        name="position_embedding",
    )


def add_positions(config, tokens, features, dtype):
    """Return `tokens` with the position embedding of the stem added."""
    layer = stem_positions(config, dtype)
    if layer is None:
        return tokens
    if config.use_dynamic_image_size:
        return layer(tokens, features)
    return layer(tokens)


def transformer_block(config, index, dtype):
    """Return block `index`; the stochastic depth rate grows with the index."""
    depth_rate = config.stochastic_depth_rate * index
    return TransformerBlock(
        config.num_heads,
        config.mlp_dim,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
        stochastic_depth_rate=depth_rate / max(config.depth - 1, 1),
        activation=config.activation,
        layer_norm_epsilon=config.layer_norm_epsilon,
        use_remat=config.use_remat,
        norm=config.norm,
        norm_placement=config.norm_placement,
        layer_scale_init=config.layer_scale_init,
        layer_scale_branches=config.layer_scale_branches,
        attention_options={
            "qkv_bias": config.qkv_bias,
            "use_out_bias": config.use_block_bias,
            "qk_norm": config.qk_norm,
            "norm": config.norm,
            "use_inner_norm": config.use_attention_inner_norm,
            "rotary_pairs": rotary_pairs(config),
        },
        mlp_options={
            "is_gated": config.use_gated_mlp,
            "norm": config.norm,
            "use_inner_norm": config.use_mlp_inner_norm,
            "use_bias": config.use_block_bias,
        },
        dtype=dtype,
        name=f"block_{index:02d}",
    )


def rotary_pairs(config):
    """Return which features the rotary positions of `config` pair."""
    layer_class = ROTARY_POSITIONS[config.rotary_positions]
    return layer_class.pairs if layer_class else "halves"


def layer_norm(config, name, dtype):
    """Return a norm of the kind and with the epsilon of `config`."""
    return make_norm(
        config.norm, config.layer_norm_epsilon, dtype=dtype, name=name
    )


def pooling(config, dtype=None):
    """Return the pooling of `config`, or None to return all tokens."""
    choices = dataclasses.asdict(config)
    choices["num_prefix_tokens"] = config.num_prefix_tokens
    choices["num_heads"] = config.pooling_heads or config.num_heads
    choices["mlp_dim"] = config.pooling_mlp_dim or config.mlp_dim
    return make_chosen(
        POOLINGS,
        config.pooling,
        "pooling",
        choices,
        dtype=dtype,
        name="pooling",
    )


def pre_logits(config, dtype):
    """Return the tanh layer before the classifier."""
    return keras.layers.Dense(
        config.representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        dtype=policy_at(dtype, "pre_logits"),
        name="pre_logits",
    )


def pooled_head(config, dtype=None):
    """Return the classifier that belongs to the pooling, or None."""
    layer_class = POOLINGS[config.pooling]
    if layer_class is None or layer_class.head_class is None:
        return None
    return layer_class.head_class(
        config.num_classes,
        config.classifier_activation,
        config.head_bias,
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )


def head(config, dtype):
    """Return the classifier; its kernel is zero, as in the official code."""
    return pooled_head(config, dtype) or keras.layers.Dense(
        config.num_classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )


def connect_layers(config: ViTConfig, images, dtype=None):
    """Return the output of a new model of `config` for `images`.

    Shapes:
        images: a symbolic tensor (B, H, W, C).

    Args:
        config: The configuration of the model.
        images: The input of the first layer.
        dtype: Dtype policy of the layers.
    """
    features = images
    if config.stem_stages is not None:
        features = stem(config, dtype)(images)  # (B, H', W', C')
    x = patch_encoder(config, dtype)(features)  # (B, N, D)
    if config.use_patch_norm:
        x = layer_norm(config, "patch_norm", dtype)(x)
    x = add_prefix_and_positions(config, x, features, dtype)  # (B, T, D)
    if config.use_embedding_norm:
        x = layer_norm(config, "embedding_norm", dtype)(x)
    if config.dropout_rate:
        x = keras.layers.Dropout(
            config.dropout_rate, dtype=dtype, name="dropout"
        )(x)
    positions = connect_positions(config, x, features, dtype)
    for index in range(config.depth):
        x = transformer_block(config, index, dtype)(x, **positions[index])
    if config.use_final_norm and not config.use_pooling_norm:
        x = layer_norm(config, "encoder_norm", dtype)(x)
    if layer := pooling(config, dtype):
        x = layer(x)  # (B, D)
    if config.use_final_norm and config.use_pooling_norm:
        x = layer_norm(config, "pooling_norm", dtype)(x)
    if config.representation_size:
        x = pre_logits(config, dtype)(x)  # (B, R)
    return head(config, dtype)(x) if config.num_classes else x


def runs_eagerly(images) -> bool:
    """Return whether `run_layers` may compute a model of `images`."""
    is_array = isinstance(images, np.ndarray) or ops.is_tensor(images)
    return is_array and len(images.shape) == 4


def run_layers(model: keras.Model, images, training: bool | None = None):
    """Return the output of a functional model, computed layer by layer.

    Keras keeps the outputs of all layers until the last one is computed. Here
    each is freed after the last layer that reads it, so the next one takes its
    place in memory.

    Shapes:
        images: (B, H, W, C). returns: the output of the model.

    Args:
        model: A functional model of layers, with one input and one output.
        images: An array or a tensor.
        training: Passed on to the layers that have this argument.
    """
    (start,), (end,) = model.inputs, model.outputs
    tensors = {id(start): ops.convert_to_tensor(images, start.dtype)}
    nodes = [layer._inbound_nodes[0] for layer in model.layers[1:]]
    last_reader = {id(x): node for node in nodes for x in node.input_tensors}
    for node in nodes:
        inputs, arguments = node.arguments.fill_in(tensors)
        for x in node.input_tensors:
            if last_reader[id(x)] is node:
                tensors.pop(id(x), None)
        if node.operation._call_has_training_arg:
            arguments = {**arguments, "training": training}
        (output,) = node.outputs
        tensors[id(output)] = call_layer(node.operation, *inputs, **arguments)
    return tensors[id(end)]


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchGrid(keras.layers.Layer):
    """Arrange patch tokens as in the images that they come from.

    It is a layer, because the size of symbolic images is not known before
    the graph runs.

    Shapes:
        tokens: (B, h * w, D).
        images: (B, H, W, C).
        returns: (B, h, w, D).

    Args:
        stride: Pixels from one patch to the next.
        stem_stride: Pixels from one cell of the feature map to the next, in a
            model with a stem; its padding rounds the number of cells up.

    Example:
        >>> grid = models.vit.PatchGrid(8)
        >>> tuple(grid(np.ones((2, 6, 5)), np.ones((2, 16, 24, 3))).shape)
        (2, 2, 3, 5)
    """

    def __init__(self, stride: int, stem_stride: int = 1, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.stride = stride
        self.stem_stride = stem_stride

    def build(self, tokens_shape, images_shape):
        self.built = True

    def call(self, tokens, images):
        grid = map(self._count, ops.shape(images)[1:3])
        return ops.reshape(tokens, (-1, *grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        sides = images_shape[1:3]
        grid = (None if s is None else self._count(s) for s in sides)
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def _count(self, side):
        """Return the number of patches along a side of so many pixels."""
        cells = -(-side // self.stem_stride)
        return cells // (self.stride // self.stem_stride)

    def get_config(self):
        options = {"stride": self.stride, "stem_stride": self.stem_stride}
        return {**super().get_config(), **options}


def compute_block_features(
    model,
    images,
    blocks: Sequence[int] | None = None,
    as_grid: bool = True,
    norm: bool = True,
    with_prefix: bool = False,
) -> list:
    """Return the patches after blocks of a model.

    With symbolic images, the result is symbolic: part of a graph of layers,
    which can be trained, saved and exported.

    Shapes:
        images: (B, H, W, C).
        returns: (B, h, w, D) for each block, or (B, h * w, D).

    Args:
        model: A VisionTransformer.
        images: Images, or a symbolic tensor of them.
        blocks: Indices of the blocks, counted from 0; negative ones count from
            the end. Default: all blocks.
        as_grid: Whether the patches are arranged as in the image.
        norm: Whether the last norm of the model is applied to each, as far as
            it has one before its pooling.
        with_prefix: Whether to return pairs: the patches, and the tokens
            before them (B, P, D).

    Raises:
        ValueError: If `blocks` names no block, or one that is not there.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> images = np.zeros((2, 224, 224, 3), "float32")
        >>> [tuple(x.shape) for x in model.features(images, blocks=(0, -1))]
        [(2, 14, 14, 32), (2, 14, 14, 32)]
    """
    depth, prefix = model.config.depth, model.config.num_prefix_tokens
    layers = {layer.name: layer for layer in model.layers}
    outputs = []
    for index in _indices(blocks, depth):
        x = layers[f"block_{index % depth:02d}"].output
        if norm and "encoder_norm" in layers:
            x = layers["encoder_norm"](x)
        outputs.append(x)
    tokens = keras.Model(model.input, outputs)(images)
    tokens = tokens if isinstance(tokens, list) else [tokens]
    found = []
    for x in tokens:
        patches = x[:, prefix:]
        if as_grid:
            patches = _arrange(patches, images, model.config)
        found.append((patches, x[:, :prefix]) if with_prefix else patches)
    return found


def _indices(blocks, depth):
    """Return the indices of the blocks; raise a ValueError unless they are."""
    if blocks is None:
        return range(depth)
    chosen = tuple(blocks) if isinstance(blocks, Iterable) else ()
    if chosen and all(
        isinstance(index, numbers.Integral) and -depth <= index < depth
        for index in chosen
    ):
        return chosen
    raise ValueError(
        f"`blocks` must be from {-depth} to {depth - 1}, one or more in a "
        f"list. Received: blocks={blocks!r}"
    )


def _arrange(patches, images, config):
    """Return patches (B, h * w, D) as in the images, (B, h, w, D)."""
    if config.use_dynamic_image_size:
        stem_stride = config.stem_stride
        grid = PatchGrid(config.patch_size * stem_stride, stem_stride)
        return grid(patches, images)
    return ops.reshape(patches, (-1, *config.grid_size, patches.shape[-1]))


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A Vision Transformer: patches, positions, Transformer blocks, head.

    Every step is a named layer (`patch_encoder`, `block_00`, ...,
    `encoder_norm`, `predictions`), so a sub-model returns any intermediate
    result; `features` returns the patches after each block.

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

    def __init__(
        self,
        config: ViTConfig,
        dtype=None,
        name: str = "vision_transformer",
        trainable: bool = True,
    ):
        policy = keras.dtype_policies.get(dtype)
        size = config.image_size
        size = (None, None) if config.use_dynamic_image_size else size
        images = keras.Input((*size, config.channels), name="images")
        super().__init__(
            inputs=images,
            outputs=connect_layers(config, images, policy),
            name=name,
            trainable=trainable,
        )
        self.dtype_policy = policy
        self.config = config

    if keras.backend.backend() == "torch":

        def call(self, inputs, training=None, mask=None):
            if runs_eagerly(inputs):
                return run_layers(self, inputs, training)
            return super().call(inputs, training=training, mask=mask)

    def features(
        self, images, blocks=None, as_grid=True, norm=True, with_prefix=False
    ) -> list:
        """Return the patches after blocks, (B, h, w, D) for each block.

        Args:
            images: Images (B, H, W, C), or a symbolic tensor of them.
            blocks: Indices of the blocks; all by default.
            as_grid: Whether the patches are arranged as in the image.
            norm: Whether the last norm of the model is applied.
            with_prefix: Whether to return pairs of patches and prefix tokens.
        """
        return compute_block_features(
            self, images, blocks, as_grid, norm, with_prefix
        )

    def with_image_size(
        self, image_size: tuple[int, int] | int, patch_size: int | None = None
    ):
        """Return this model for images, and patches, of another size.

        The weights are copied. The position table is resized by the rule
        `position_resize` of the configuration, the kernel of the patches as
        in FlexiViT.

        Args:
            image_size: (height, width) in pixels; one number means a square.
            patch_size: Side of a patch in pixels. Default: that of this model.

        Returns:
            A new VisionTransformer. This one does not change.

        Raises:
            ValueError: If the image is not a whole number of patches.
        """
        if patch_size is None:
            patch_size = self.config.patch_size
        return copy_model(
            self,
            image_size=image_size,
            patch_size=patch_size,
            use_dynamic_image_size=False,
        )

    def with_num_classes(self, num_classes: int):
        """Return this model with a new head for `num_classes` classes.

        All layers before the head are copied. The kernel of the head is zero,
        and the head is trainable, without LoRA, even if all else is frozen.

        Args:
            num_classes: Outputs of the new head; 0 for none.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        model = copy_model(self, ["predictions"], num_classes=num_classes)
        if num_classes:
            train_layer(model, "predictions")
        return model

    def with_classifier_activation(self, classifier_activation: str | None):
        """Return this model with another activation after the same head.

        Args:
            classifier_activation: Such as "softmax"; None for logits.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        return copy_model(self, classifier_activation=classifier_activation)

    def with_layer_norm_epsilon(self, layer_norm_epsilon: float):
        """Return this model with another epsilon and the same weights.

        Its outputs differ slightly. `save_checkpoint` requires this where the
        model of another library has a fixed epsilon.

        Args:
            layer_norm_epsilon: Added to each variance, such as 1e-6.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        return copy_model(self, layer_norm_epsilon=layer_norm_epsilon)

    def with_remat(self, use_remat: bool = True):
        """Return this model with or without rematerialised blocks.

        Args:
            use_remat: Whether training keeps only the input of each block and
                computes the rest again in the backward pass.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        return copy_model(self, use_remat=use_remat)

    def with_dtype(self, dtype):
        """Return this model with another dtype policy and the same weights.

        Args:
            dtype: Dtype policy of the layers, such as "float32".

        Returns:
            A new VisionTransformer. This one does not change.

        Raises:
            ValueError: If this model is quantised.
        """
        if is_quantized(self):
            raise ValueError(
                "A quantised model has no float weights to convert; use the "
                f"model it was quantised from. Received: model={self.name!r}"
            )
        return copy_model(self, dtype=dtype)

    def freeze(self, keep: Iterable[str] = ("head",), num_last_blocks: int = 0):
        """Freeze all weights except those named here.

        Call it before `compile`; after a `fit`, call `compile` again.

        Args:
            keep: The parts that are trained: any of "head", "norms", "biases",
                "positions" and "class_token".
            num_last_blocks: The number of last blocks that are trained, with
                everything after them.

        Raises:
            ValueError: If a part is unknown, or there are fewer blocks.
        """
        is_kept = keeping(keep)
        is_last = in_last_blocks(self, num_last_blocks)
        set_trained(self, lambda path: is_kept(path) or is_last(path))

    def unfreeze(self):
        """Make all weights trainable, except kernels with LoRA weights."""
        set_trained(self, lambda path: True)

    def enable_lora(
        self,
        rank: int,
        layers: Iterable[str] = ("qkv", "out"),
        alpha: float | None = None,
        keep: Iterable[str] = ("head",),
    ):
        """Train low-rank updates of kernels, and freeze all other weights.

        Each kernel W becomes W + alpha / rank * A B. B starts at zero, so the
        outputs do not change. A file that `save` writes has the merged
        kernels; `keras_vit.save_lora` writes the trained weights alone.

        Args:
            rank: The inner dimension of A B.
            layers: The layers with updates, in all blocks: any of "qkv" and
                "out" of the attention, "mlp_hidden", "mlp_out", and "head".
            alpha: Scale of the low-rank updates. Default: `rank`.
            keep: The parts that are trained as well; see `freeze`.

        Raises:
            ValueError: If an argument is invalid, or the model is quantised
                or has LoRA weights.

        Reference: Hu et al. 2022, arXiv:2106.09685.
        """
        add_lora(self, rank, layers, alpha, keep)

    def merge_lora(self):
        """Return this model with LoRA weights added to their kernels.

        What is frozen stays frozen; `unfreeze` trains all weights.

        Returns:
            A new VisionTransformer without LoRA. This one does not change.
        """
        return copy_model(self, is_merged=True)

    def save(self, filepath, *arguments, **options):
        if layers_with_lora(self):
            # Keras would merge in the compute dtype and save a wrong optimizer.
            return self.merge_lora().save(filepath, *arguments, **options)
        return super().save(filepath, *arguments, **options)

    def get_config(self):
        return {
            "config": dataclasses.asdict(self.config),
            "dtype": nested_dtype_policy(self),
            "name": self.name,
            "trainable": self.trainable,
            **describe_frozen(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        frozen = [config.pop(k, ()) for k in ("frozen", "frozen_weights")]
        fields = ViTConfig(**config["config"])
        model = cls(**{**config, "config": fields})
        freeze_again(model, *frozen)
        return model


def check_vision_transformer(model):
    """Raise a ValueError unless `model` is a VisionTransformer.

    If a VisionTransformer is part of `model`, the message names the call that
    returns it.
    """
    if isinstance(model, VisionTransformer):
        return
    advice = ""
    calls = list(find_vision_transformers(model))
    if calls:
        advice = f" Pass the one inside of it: {' or '.join(calls)}."
    elif is_plain_copy(model):
        advice = (
            " This model has the layers of one but no configuration, as after "
            "`keras.models.clone_model`. Copy the original with "
            "`keras_vit.VisionTransformer.from_config(model.get_config())`."
        )
    raise ValueError(
        "`model` must be a keras_vit.VisionTransformer."
        f"{advice} Received: {type(model).__name__}"
    )


def find_vision_transformers(model, call: str = "model") -> Iterator[str]:
    """Yield the call that returns each VisionTransformer inside `model`.

    Args:
        model: A Sequential, functional or subclassed Keras model.
        call: A Python expression for `model`.

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


def is_plain_copy(model) -> bool:
    """Return whether a plain model has the layers of a VisionTransformer."""
    layers = model.layers if isinstance(model, keras.Model) else ()
    return any(isinstance(layer, PatchEncoder) for layer in layers)
