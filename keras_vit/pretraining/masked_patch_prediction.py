"""MaskedPatchPrediction: predicts the mean colours of corrupted patches."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import wide
from keras_vit.layers.fewer_tokens import TakeTokens
from keras_vit.models import VisionTransformer
from keras_vit.pretraining.masking import PatchCorruption
from keras_vit.pretraining.pretraining_model import (
    PretrainingModel,
    last_layer,
    start_hiding,
)
from keras_vit.pretraining.targets import (
    PATCH_TARGETS,
    SHADES,
    color_classes,
    cut_grid,
    paint_classes,
)
from keras_vit.tables import pick


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPrediction(PretrainingModel):
    """Predict the mean colours of corrupted patches, as BERT predicts words.

    All patches are read, some of them corrupted; each corrupted one predicts
    what it was from its own output token. The loss is the cross-entropy of the
    colours, or the mean square error of the pixels.

    Shapes:
        images: (B, H, W, C), floats, normalised as the preprocessing in the
            configuration of the encoder says.
        returns: "predictions" (B, M, 1 or 16, 8^C) and "targets", the same
            without the last axis; for "pixels" both are (B, M, P * P * C).
            "order" is (B, N).

    Args:
        encoder: The VisionTransformer to train.
        mask_ratio: Share of corrupted patches; see `PatchCorruption`.
        target: A key of PATCH_TARGETS: the mean colour of a patch, those of
            its 4 x 4 cells, or its pixels.
        name: Name of the model.
        edits: What users have changed on layers, as in `get_config`.

    Raises:
        ValueError: If the encoder has a stem or accepts any image size, or an
            argument is out of range.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.6 and
        appendix B.1.2. Its code was not released.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        mask_ratio: float = 0.5,
        target: str = "mean_color",
        name: str = "masked_patch_prediction",
        edits: dict | None = None,
    ):
        inner, order, hidden = start_hiding(encoder, mask_ratio, edits)
        cells = pick(PATCH_TARGETS, target, "target")
        config, dtype = encoder.config, encoder.dtype_policy
        kind, images = wide(encoder.compute_dtype), encoder.inputs[0]
        patches = encoder.get_layer("patch_encoder").output
        corrupted = PatchCorruption(hidden, dtype=dtype, name="corruption")(
            patches, order
        )
        last = last_layer(encoder)
        rest = keras.Model(patches, last.output, name="after_patches")
        tokens = rest(corrupted)  # (B, T, D)
        chosen = order[:, :hidden]
        x = TakeTokens(dtype=dtype, name="hidden")(
            tokens, chosen + config.num_prefix_tokens
        )
        if cells is None:
            units = config.patch_size**2 * config.channels
            truths = cut_grid(images, config)
        else:
            num_classes = SHADES**config.channels
            units = cells * cells * num_classes
            truths = color_classes(images, config, cells)
        dense = keras.layers.Dense
        x = inner(dense, "patch_predictions", units, dtype=kind)(x)
        if cells is not None:
            x = ops.reshape(x, (-1, hidden, cells**2, num_classes))
        truths = TakeTokens(dtype=kind, name="targets")(truths, chosen)
        super().__init__(
            encoder,
            {"predictions": x, "targets": truths, "order": order},
            {"mask_ratio": mask_ratio, "target": target},
            name,
            inner,
        )
        self.target = target
        self.has_hits = cells is not None

    def compute_losses(self, outputs):
        predictions, targets = outputs["predictions"], outputs["targets"]
        if not self.has_hits:
            return ops.mean(ops.square(predictions - targets), axis=(1, 2))
        losses = keras.losses.sparse_categorical_crossentropy(
            ops.cast(targets, "int32"), predictions, from_logits=True
        )
        return ops.mean(losses, axis=(1, 2))

    def compute_hits(self, outputs):
        best = ops.argmax(outputs["predictions"], axis=-1)
        truths = ops.cast(outputs["targets"], best.dtype)
        return ops.mean(ops.cast(best == truths, "float32"), axis=(1, 2))

    def paint(self, predictions, truths):
        if not self.has_hits:
            return predictions
        return paint_classes(np.argmax(predictions, axis=-1), self.config)
