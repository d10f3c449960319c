"""PretrainingModel: the base class of models around an encoder."""

import functools
import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import InnerLayers, is_quantized
from keras_vit.layers.positions import LearnedPositionEmbedding
from keras_vit.models import VisionTransformer
from keras_vit.models.tuning import describe_frozen, make_frozen
from keras_vit.models.vit import check_vision_transformer
from keras_vit.pretraining.masking import RandomPatchOrder
from keras_vit.pretraining.targets import cut_grid, join_grid

LARGEST_PERIOD = 10_000


class PretrainingModel(keras.Model):
    """A functional model around an encoder, which learns from images alone.

    Its outputs are a dictionary: the predictions and the targets of the hidden
    patches, and the order of the patches, in which the hidden ones come first.

    Args:
        encoder: The VisionTransformer to train. Its layers are shared.
        outputs: The outputs, for the input of the encoder.
        options: What `get_config` returns beside the encoder.
        name: Name of the model.
        inner: Made the layers beside the encoder.
    """

    has_hits = False  # Whether `compute_hits` is possible.

    def __init__(
        self,
        encoder: VisionTransformer,
        outputs: dict,
        options: dict,
        name: str,
        inner: InnerLayers,
    ):
        super().__init__(encoder.inputs[0], outputs, name=name)
        self.inner = inner
        self.dtype_policy = encoder.dtype_policy
        # Keras would track an attribute, and train the layers of the encoder
        # that nothing of this model depends on.
        self._read = functools.partial(_identity, encoder, options)

    @property
    def encoder(self) -> VisionTransformer:
        """The encoder, which has the trained weights."""
        return self._read()[0]

    @property
    def config(self):
        """The configuration of the encoder."""
        return self.encoder.config

    def compute_losses(self, outputs: dict):
        """Return the loss of each image, (B,)."""
        raise NotImplementedError

    def compute_hits(self, outputs: dict):
        """Return the share of right predictions of each image, (B,)."""
        raise NotImplementedError

    def paint(self, predictions: np.ndarray, truths: np.ndarray) -> np.ndarray:
        """Return the predicted pixels of hidden patches.

        Shapes:
            predictions: (B, M, ...).
            truths: (B, M, P * P * C), their real pixels.
            returns: (B, M, P * P * C).
        """
        raise NotImplementedError

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Return the loss for `fit`, which needs no labels."""
        losses = self.compute_losses(y_pred)
        if sample_weight is not None:
            losses = losses * ops.cast(sample_weight, losses.dtype)
        return ops.mean(losses) + sum(self.losses)

    def reconstruct(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return images without their hidden patches, and with predicted ones.

        Hidden patches have the value 0 in the first, and the predictions in
        the second.

        Shapes: images: (B, H, W, C), normalised. returns: the same, both.
        """
        images = np.asarray(images, "float32")
        found = self(images, training=False)
        predictions = ops.convert_to_numpy(
            ops.cast(found["predictions"], float)
        )
        order = ops.convert_to_numpy(found["order"])
        patches = ops.convert_to_numpy(cut_grid(images, self.config)).copy()
        hidden = order[:, : predictions.shape[1], None]
        truths = np.take_along_axis(patches, hidden, axis=1)
        pictures = []
        for pixels in (np.zeros_like(truths), self.paint(predictions, truths)):
            np.put_along_axis(patches, hidden, pixels, axis=1)
            pictures.append(join_grid(patches, self.config))
        return tuple(pictures)

    def get_config(self):
        encoder, options = self._read()
        return {
            "encoder": keras.saving.serialize_keras_object(encoder),
            **options,
            "name": self.name,
            **self.inner.find_edits(self.layers),
            **describe_frozen(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        encoder = keras.saving.deserialize_keras_object(
            config["encoder"], custom_objects
        )
        return make_frozen(cls, {**config, "encoder": encoder})


def _identity(*values):
    return values


def check_encoder(encoder):
    """Raise a ValueError unless patches of `encoder` can be hidden."""
    check_vision_transformer(encoder)
    if is_quantized(encoder):
        raise ValueError(
            "`encoder` must not be quantised, to be trained. "
            f"Received: encoder={encoder.name!r}"
        )
    config = encoder.config
    rests = [side % config.patch_size for side in config.image_size]
    for is_wrong, rule, *fields in (
        (
            config.stem_stages is not None,
            "no stem, whose convolutions see the pixels of other patches",
            "stem_stages",
        ),
        (
            config.use_dynamic_image_size,
            "one image size; use `with_image_size`",
            "use_dynamic_image_size",
        ),
        (
            any(rests),
            "patches that fill its images, because their pixels are "
            "reconstructed; use `with_image_size`",
            *("image_size", "patch_size"),
        ),
        (
            config.patch_dropout_rate or config.merged_tokens,
            "all its patches, to hide some",
            *("patch_dropout_rate", "merged_tokens"),
        ),
    ):
        if is_wrong:
            found = ", ".join(f"{n}={getattr(config, n)}" for n in fields)
            raise ValueError(f"`encoder` must have {rule}. Received: {found}")


def start_hiding(encoder, mask_ratio: float, edits: dict | None) -> tuple:
    """Return what makes layers, the order (B, N), and the number of hidden.

    Raises:
        ValueError: If patches of the encoder cannot be hidden.
    """
    check_encoder(encoder)
    config = encoder.config
    hidden = count_hidden(config, mask_ratio)
    draw = RandomPatchOrder(math.prod(config.grid_size), name="patch_order")
    inner = InnerLayers(encoder.dtype_policy, edits or {})
    return inner, draw(encoder.inputs[0]), hidden


def count_hidden(config, mask_ratio: float) -> int:
    """Return the number of hidden patches, which is not none and not all."""
    total = math.prod(config.grid_size)
    hidden = total - int(total * (1 - mask_ratio))
    if not (0 < mask_ratio < 1 and 0 < hidden < total):
        raise ValueError(
            "`mask_ratio` must be in (0, 1), and hide at least one patch of "
            f"{total} but not all. Received: mask_ratio={mask_ratio}"
        )
    return hidden


def last_layer(encoder: VisionTransformer):
    """Return the last layer before the pooling: the norm, or a block."""
    config = encoder.config
    if config.use_final_norm and not config.use_pooling_norm:
        return encoder.get_layer("encoder_norm")
    return encoder.get_layer(f"block_{config.depth - 1:02d}")


def fix_positions(encoder: VisionTransformer):
    """Give a new encoder the fixed positions of the masked autoencoder.

    The learned table gets sines and cosines and is no longer trained. Other
    kinds of positions stay as they are.

    Reference: the code of He et al. 2021, arXiv:2111.06377.
    """
    for layer in encoder.layers:
        if isinstance(layer, LearnedPositionEmbedding):
            write_fixed_table(layer)


def write_fixed_table(layer):
    """Write sines and cosines into a learned table, and freeze it."""
    table = fixed_table(layer.grid_size, layer.width)
    prefix = np.zeros((layer.num_prefix_tokens, layer.width), "float32")
    layer.embedding.assign(np.concatenate([prefix, table]))
    layer.trainable = False


def fixed_table(grid_size: tuple[int, int], width: int) -> np.ndarray:
    """Return the sines and cosines of columns and rows.

    The patch at row y and column x has [sin(x w), cos(x w), sin(y w),
    cos(y w)], w_k = 10000^(-k / q), k = 0 ... q - 1, q = D / 4. Differs from
    `SinCosPositionEmbedding2D` in the divisor q of the exponent.

    Shapes:
        returns: (h * w, D), float32.

    Example:
        >>> fixed_table = pretraining.pretraining_model.fixed_table
        >>> print(fixed_table((2, 2), 8)[1, :4].round(3))
        [0.841 0.01  0.54  1.   ]
    """
    if width % 4:
        raise ValueError(
            "`width` must be a multiple of 4 for fixed positions. "
            f"Received: width={width}"
        )
    quarter = width // 4
    omega = LARGEST_PERIOD ** -(np.arange(quarter) / quarter)
    y, x = np.indices(grid_size).reshape(2, -1, 1) * omega  # (h*w, D/4) each
    parts = [np.sin(x), np.cos(x), np.sin(y), np.cos(y)]
    return np.concatenate(parts, axis=-1).astype("float32")
