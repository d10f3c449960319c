"""VisionTransformer: the model, a functional graph of named layers."""

import dataclasses
from collections.abc import Iterable

import keras

from keras_vit.layers.dtypes import is_quantized, nested_dtype_policy
from keras_vit.layers.old_arguments import with_new_names
from keras_vit.models.block_features import compute_block_features
from keras_vit.models.config import ViTConfig
from keras_vit.models.connecting import connect_layers
from keras_vit.models.freezing import (
    describe_frozen,
    freeze_again,
    in_last_blocks,
    keeping,
    set_trained,
    train_layer,
)
from keras_vit.models.lora import add_lora, layers_with_lora
from keras_vit.models.rebuilding import copy_model
from keras_vit.models.running import run_layers, runs_eagerly


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
        fields = ViTConfig(**with_new_names(config["config"]))
        model = cls(**{**config, "config": fields})
        freeze_again(model, *frozen)
        return model
