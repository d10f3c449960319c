"""MaskedAutoencoder: an encoder of the visible patches, and a decoder."""

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.base import wide
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.fewer_tokens import TAKERS, TakeTokens
from keras_vit.layers.norms import LayerNorm
from keras_vit.layers.positions import LearnedPositionEmbedding
from keras_vit.layers.relative import RELATIVE_POSITIONS
from keras_vit.models import VisionTransformer
from keras_vit.models.features import block_inputs
from keras_vit.pretraining.masking import MaskTokens
from keras_vit.pretraining.pretraining_model import (
    PretrainingModel,
    last_layer,
    start_hiding,
    write_fixed_table,
)
from keras_vit.pretraining.targets import cut_grid, patch_moments


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedAutoencoder(PretrainingModel):
    """Predict the pixels of hidden patches from the visible ones.

    The encoder reads the visible patches alone, so a step costs little. A small
    decoder reads its outputs, and a learned token in each hidden place.

    Shapes:
        images: (B, H, W, C), floats.
        returns: "predictions" and "targets" (B, M, P * P * C) of the M hidden
            patches, "order" (B, N).

    Args:
        encoder: The VisionTransformer to train; see `fix_positions` for the
            positions of the paper.
        mask_ratio: Share of hidden patches.
        decoder_width: Size of a token of the decoder.
        decoder_depth: Number of its blocks.
        decoder_heads: Number of its attention heads.
        normalize_pixels: Whether the target of a patch has mean 0 and
            variance 1.
        name: Name of the model.
        edits: What users have changed on layers, as in `get_config`.

    Raises:
        ValueError: If the encoder has a stem or accepts any image size, or an
            argument is out of range.

    Example:
        >>> encoder = VisionTransformer(VARIANTS["mu/16"].config)
        >>> model = pretraining.MaskedAutoencoder(
        ...     encoder, decoder_width=16, decoder_depth=1, decoder_heads=2
        ... )
        >>> outputs = model(np.ones((2, 224, 224, 3)))
        >>> tuple(outputs["predictions"].shape)
        (2, 147, 768)

    Reference: He et al. 2021, arXiv:2111.06377.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        mask_ratio: float = 0.75,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        normalize_pixels: bool = True,
        name: str = "masked_autoencoder",
        edits: dict | None = None,
    ):
        inner, order, hidden = start_hiding(encoder, mask_ratio, edits)
        config = encoder.config
        relative = RELATIVE_POSITIONS[config.relative_positions]
        if relative and relative.argument not in TAKERS:
            raise ValueError(
                "`encoder` must have no relative keys, which belong to a whole "
                "grid of patches. Received: "
                f"relative_positions={config.relative_positions!r}"
            )
        sizes = {
            "decoder_width": as_whole(decoder_width, "decoder_width"),
            "decoder_depth": as_whole(decoder_depth, "decoder_depth"),
            "decoder_heads": as_whole(decoder_heads, "decoder_heads"),
        }
        encoded = encode_visible(encoder, order, hidden)
        predictions = _decode(
            encoder, encoded, order, hidden, *sizes.values(), inner
        )
        patches = cut_grid(encoder.inputs[0], config)
        if normalize_pixels:
            mean, deviation = patch_moments(patches)
            patches = (patches - mean) / deviation
        kind = wide(encoder.compute_dtype)
        targets = TakeTokens(dtype=kind, name="targets")(
            patches, order[:, :hidden]
        )
        super().__init__(
            encoder,
            {"predictions": predictions, "targets": targets, "order": order},
            {
                "mask_ratio": mask_ratio,
                **sizes,
                "normalize_pixels": normalize_pixels,
            },
            name,
            inner,
        )
        self.normalize_pixels = normalize_pixels
        write_fixed_table(self.get_layer("decoder_positions"))

    def compute_losses(self, outputs):
        error = outputs["predictions"] - outputs["targets"]
        return ops.mean(ops.square(error), axis=(1, 2))

    def paint(self, predictions, truths):
        if not self.normalize_pixels:
            return predictions
        # The predictions know nothing of brightness and contrast.
        mean, deviation = map(
            ops.convert_to_numpy, patch_moments(ops.convert_to_tensor(truths))
        )
        return predictions * deviation + mean


def encode_visible(encoder, order, hidden: int):
    """Return the symbolic tokens of the prefix and the visible patches.

    Shapes:
        order: (B, N). returns: (B, T - M, D).

    Args:
        encoder: The VisionTransformer.
        order: The order of the patches.
        hidden: Number M of hidden patches, the first in the order.
    """
    config = encoder.config
    prefix = config.num_prefix_tokens
    # The indices of the prefix tokens, and then those of the visible patches.
    own = np.zeros(prefix + order.shape[1] - hidden, "int32")
    own[:prefix] = np.arange(prefix)
    indices = ops.pad(order[:, hidden:] + prefix, ((0, 0), (prefix, 0))) + own
    tokens, positions = block_inputs(encoder)
    x = TakeTokens(dtype=encoder.dtype_policy, name="visible")(tokens, indices)
    for index, row in enumerate(positions):
        choose = {key: TAKERS[key](rows, indices) for key, rows in row.items()}
        x = encoder.get_layer(f"block_{index:02d}")(x, **choose)
    last = last_layer(encoder)
    return last(x) if last.name == "encoder_norm" else x


def _decode(encoder, x, order, hidden, width, depth, heads, inner):
    """Return the predictions (B, M, P * P * C) of the hidden patches."""
    config, dtype = encoder.config, encoder.dtype_policy
    prefix, epsilon = config.num_prefix_tokens, config.layer_norm_epsilon
    x = inner(keras.layers.Dense, "decoder_embed", width)(x)
    patches = MaskTokens(hidden, dtype=dtype, name="mask_token")(x[:, prefix:])
    patches = TakeTokens(dtype=dtype, name="unshuffled")(
        patches, ops.argsort(order, axis=-1)
    )
    x = ops.concatenate([x[:, :prefix], patches], axis=1)  # (B, T, D)
    x = LearnedPositionEmbedding(
        config.grid_size, prefix, dtype=dtype, name="decoder_positions"
    )(x)
    options = {"activation": config.activation, "layer_norm_epsilon": epsilon}
    options["use_remat"] = config.use_remat
    for index in range(depth):
        name, sizes = f"decoder_block_{index:02d}", (heads, 4 * width)
        x = inner(TransformerBlock, name, *sizes, **options)(x)
    x = inner(LayerNorm, "decoder_norm", epsilon)(x)
    # Only the tokens that the loss reads.
    x = TakeTokens(dtype=dtype, name="hidden")(x, order[:, :hidden] + prefix)
    length = config.patch_size**2 * config.channels
    kind = wide(dtype.compute_dtype)
    dense = keras.layers.Dense
    return inner(dense, "decoder_predictions", length, dtype=kind)(x)
