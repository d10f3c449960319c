"""VisionTransformer: the model, a functional graph of named layers."""

import dataclasses

import keras

from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.dtypes import (
    float32_unless_quantized,
    is_quantized,
    nested_dtype_policy,
    policy_at,
)
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.pooling import make_pooling
from keras_vit.layers.position_embedding import (
    PositionEmbedding,
    make_position_embedding,
)
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.models.config import ViTConfig


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A Vision Transformer: patches, positions, Transformer blocks, head.

    Every step is a layer with a name (`patch_encoder`, `block_00`, ...,
    `encoder_norm`, `predictions`), so that `keras.Model(model.input,
    model.get_layer("block_03").output)` gives any intermediate result.

    Shapes:
        images: (B, H, W, C), floats in [-1, 1]; see `preprocess_input`.
        returns: (B, num_classes); without a head (B, D); without pooling
            (B, T, ...).

    Args:
        config: What the model is made of.
        dtype: Type policy of the layers, None for Keras' global one. The head
            answers in float32 under mixed precision.
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
            outputs=connect(config, images, policy),
            name=name,
            trainable=trainable,
        )
        self.dtype_policy = policy
        self.config = config

    def with_image_size(self, image_size: tuple[int, int] | int):
        """Return this model for images of another size.

        The weights are copied; the position table is resized by the official
        rule, see `keras_vit.layers.resize_position_grid`.

        Args:
            image_size: (height, width) in pixels; one number means a square.

        Returns:
            A new VisionTransformer. This one stays as it is.

        Raises:
            ValueError: If the image is not a whole number of patches.
        """
        return self._rebuilt(
            image_size=image_size, use_dynamic_image_size=False
        )

    def with_num_classes(self, num_classes: int):
        """Return this model with a new head for `num_classes` classes.

        Everything below the head is copied; the head starts at zero and is
        trained even if all the rest is frozen.

        Args:
            num_classes: Outputs of the new head; 0 for none.

        Returns:
            A new VisionTransformer. This one stays as it is.
        """
        model = self._rebuilt(["predictions"], num_classes=num_classes)
        if num_classes:
            model._trainable = True
            model.get_layer("predictions").trainable = True
        return model

    def with_classifier_activation(self, classifier_activation: str | None):
        """Return this model with another activation behind the same head.

        Args:
            classifier_activation: Such as "softmax"; None for logits.

        Returns:
            A new VisionTransformer. This one stays as it is.
        """
        return self._rebuilt(classifier_activation=classifier_activation)

    def with_remat(self, use_remat: bool = True):
        """Return this model with or without rematerialised blocks.

        Args:
            use_remat: Whether training keeps only what enters each block and
                computes the rest again in the backward pass.

        Returns:
            A new VisionTransformer. This one stays as it is.
        """
        return self._rebuilt(use_remat=use_remat)

    def with_dtype(self, dtype):
        """Return this model computing in another type, with equal weights.

        Args:
            dtype: Type policy of the layers, such as "float32".

        Returns:
            A new VisionTransformer. This one stays as it is.

        Raises:
            ValueError: If this model is quantised.
        """
        if is_quantized(self):
            raise ValueError(
                "A quantised model has no float weights to convert; use the "
                f"model it was quantised from. Received: model={self.name!r}"
            )
        return self._rebuilt(dtype=dtype)

    def _rebuilt(self, new_layers=(), dtype=None, **changes):
        config = dataclasses.replace(self.config, **changes)
        arguments = {
            **self.get_config(),
            "config": dataclasses.asdict(config),
            **({"dtype": dtype} if dtype else {}),
        }
        rebuilt = type(self).from_config(arguments)
        for layer in rebuilt.layers:
            if layer.name in new_layers:
                continue
            source = self.get_layer(layer.name)
            for new, old in zip(
                layer._flatten_layers(), source._flatten_layers()
            ):
                new.trainable = old.trainable
            if isinstance(layer, PositionEmbedding):
                layer.resize_from(source)
            else:
                layer.set_weights(source.get_weights())
        return rebuilt

    def get_config(self):
        return {
            "config": dataclasses.asdict(self.config),
            "dtype": nested_dtype_policy(self),
            "name": self.name,
            "trainable": self.trainable,
            "frozen": [
                layer.path
                for layer in self._flatten_layers(include_self=False)
                if layer.path and not layer.trainable
            ],
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        frozen = set(config.pop("frozen", ()))
        model = cls(**{**config, "config": ViTConfig(**config["config"])})
        for layer in model._flatten_layers(include_self=False):
            if layer.path in frozen:
                layer.trainable = False
        return model


def connect(config: ViTConfig, images, dtype=None):
    """Return the output of the model of `config` on `images`.

    The layers are new; each is named.

    Shapes:
        images: a symbolic tensor (B, H, W, C).

    Args:
        config: What the model is made of.
        images: What the first layer reads.
        dtype: Type policy of the layers.
    """
    features = images
    if config.stem_stages is not None:
        stem = ResNetStem(
            config.stem_stages, config.stem_epsilons, dtype=dtype, name="stem"
        )
        features = stem(images)  # (B, H', W', C')
    x = PatchEncoder(
        config.patch_size, config.width, dtype=dtype, name="patch_encoder"
    )(features)  # (B, N, D)
    if config.use_class_token:
        x = ClassToken(dtype=dtype, name="class_token")(x)  # (B, T, D)
    x = add_positions(config, x, features, dtype)
    if config.dropout_rate:
        x = keras.layers.Dropout(
            config.dropout_rate, dtype=dtype, name="dropout"
        )(x)
    for index in range(config.depth):
        x = transformer_block(config, index, dtype)(x)
    epsilon = config.layer_norm_epsilon
    if not config.use_pooling_norm:
        x = LayerNorm(epsilon, dtype=dtype, name="encoder_norm")(x)
    pooling = make_pooling(
        config.pooling,
        dataclasses.asdict(config)
        | {"num_prefix_tokens": int(config.use_class_token)},
        dtype=dtype,
        name="pooling",
    )
    x = pooling(x) if pooling else x  # (B, D)
    if config.use_pooling_norm:
        x = LayerNorm(epsilon, dtype=dtype, name="pooling_norm")(x)
    if config.representation_size:
        x = keras.layers.Dense(
            config.representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            dtype=policy_at(dtype, "pre_logits"),
            name="pre_logits",
        )(x)  # (B, R)
    return head(config, dtype)(x) if config.num_classes else x


def add_positions(config, tokens, features, dtype):
    """Return `tokens` with the position embedding of `config` added."""
    layer = make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=int(config.use_class_token),
        patch_size=config.patch_size,
        dtype=dtype,
        name="position_embedding",
    )
    if layer is None:
        return tokens
    if config.use_dynamic_image_size:
        return layer(tokens, features)
    return layer(tokens)


def transformer_block(config, index, dtype):
    """Return block number `index`; later ones are dropped more often."""
    depth_rate = config.stochastic_depth_rate * index
    return TransformerBlock(
        config.num_heads,
        config.mlp_dim,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
        stochastic_depth_rate=depth_rate / max(config.depth - 1, 1),
        gelu=config.gelu,
        layer_norm_epsilon=config.layer_norm_epsilon,
        use_remat=config.use_remat,
        dtype=dtype,
        name=f"block_{index:02d}",
    )


def head(config, dtype):
    """Return the classifier; its kernel starts at zero, as the official."""
    return keras.layers.Dense(
        config.num_classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )
