"""VisionTransformer: the model, a functional graph of named layers."""

import dataclasses

import keras

from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.dtypes import is_quantized, nested_dtype_policy
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.models.config import ViTConfig
from keras_vit.models.parts import (
    add_positions,
    head,
    layer_norm,
    pool,
    pre_logits,
    stem,
    transformer_block,
)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A Vision Transformer: patches, positions, Transformer blocks, head.

    Every step is a named layer (`patch_encoder`, `block_00`, ...,
    `encoder_norm`, `predictions`), so a sub-model such as `keras.Model(
    model.input, model.get_layer("block_03").output)` returns any intermediate
    result.

    Shapes:
        images: (B, H, W, C), floats in [-1, 1]; see `preprocess_input`.
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
            outputs=connect(config, images, policy),
            name=name,
            trainable=trainable,
        )
        self.dtype_policy = policy
        self.config = config

    def with_image_size(self, image_size: tuple[int, int] | int):
        """Return this model for images of another size.

        The weights are copied; the position table is resized by the rule of
        the official code, see `keras_vit.layers.resize_position_grid`.

        Args:
            image_size: (height, width) in pixels; one number means a square.

        Returns:
            A new VisionTransformer. This one does not change.

        Raises:
            ValueError: If the image is not a whole number of patches.
        """
        return self._rebuilt(
            image_size=image_size, use_dynamic_image_size=False
        )

    def with_num_classes(self, num_classes: int):
        """Return this model with a new head for `num_classes` classes.

        All layers before the head are copied. The kernel of the head is zero,
        and the head is trainable even if all other layers are frozen.

        Args:
            num_classes: Outputs of the new head; 0 for none.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        model = self._rebuilt(["predictions"], num_classes=num_classes)
        if num_classes:
            model._trainable = True
            model.get_layer("predictions").trainable = True
        return model

    def with_classifier_activation(self, classifier_activation: str | None):
        """Return this model with another activation after the same head.

        Args:
            classifier_activation: Such as "softmax"; None for logits.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        return self._rebuilt(classifier_activation=classifier_activation)

    def with_remat(self, use_remat: bool = True):
        """Return this model with or without rematerialised blocks.

        Args:
            use_remat: Whether training keeps only the input of each block and
                computes the rest again in the backward pass.

        Returns:
            A new VisionTransformer. This one does not change.
        """
        return self._rebuilt(use_remat=use_remat)

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
    if not config.use_pooling_norm:
        x = layer_norm(config, "encoder_norm", dtype)(x)
    x = pool(config, x, dtype)  # (B, D)
    if config.use_pooling_norm:
        x = layer_norm(config, "pooling_norm", dtype)(x)
    if config.representation_size:
        x = pre_logits(config, dtype)(x)  # (B, R)
    return head(config, dtype)(x) if config.num_classes else x
