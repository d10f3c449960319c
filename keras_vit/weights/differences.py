"""Reasons why a model and the source of its weights differ, for the report."""

from collections.abc import Iterator

from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.weights.expressible import LATER_FIELDS


def describe_mismatches(theirs: ViTConfig, ours: ViTConfig) -> Iterator[str]:
    """Yield the reasons why a model computes other outputs than its source.

    Args:
        theirs: The configuration of the source.
        ours: The configuration of the model.
    """
    for field, effect in EFFECTS.items():
        source, model = getattr(theirs, field), getattr(ours, field)
        if field in ROTARY_CHOICES and ours.rotary_positions == "none":
            continue
        if source == model or (field == "pooling" and not ours.num_classes):
            continue
        yield (
            f"The source computes with {field}={source!r}, the model with "
            f"{field}={model!r}: {effect}. Build the model with "
            f"`{field}={source!r}` to match it."
        )


def describe_images(
    path: str,
    theirs: Preprocessing | None,
    model: ViTConfig,
    is_adapted: bool,
) -> tuple[str, ...]:
    """Return a note if the images of a model need attention.

    Args:
        path: Path of the checkpoint, for the note.
        theirs: Settings of the checkpoint; None if they are unknown.
        model: The configuration of the model.
        is_adapted: Whether its first layer is adapted to that.
    """
    if theirs is None:
        return ()
    mode, own = theirs.normalization, model.preprocessing.normalization
    if mode == own == "vit":
        return ()
    if mode == own:
        return (
            f"{path} was trained with images normalised in another way than "
            "the default of `preprocess_input`. Call "
            "`keras_vit.preprocess_input(images, model=model)`, or pass "
            "`preprocessing='vit'` to adapt the weights to the default.",
        )
    if is_adapted:
        return ()
    if len(theirs.mean) not in (1, model.channels):
        return (
            f"{path} was trained with images of {len(theirs.mean)} channels, "
            f"normalised by {mode!r}. The model is built for {model.channels} "
            f"channels and {own!r}, and its weights are not adapted to that, "
            "so the outputs for equal images differ. Call "
            "`keras_vit.preprocess_input(images, model=model)`.",
        )
    return (
        f"{path} was trained with images normalised by {mode!r}. The model is "
        f"built for {own!r}, and its weights are not adapted to that. Call "
        f"`keras_vit.preprocess_input(images, mode={mode!r})`, or build the "
        "model with that `preprocessing`.",
    )


ROTARY_CHOICES = (
    "rotary_temperature",
    "rotary_axes",
    "rotary_reference_size",
    "rotary_offset",
)
# Fields of ViTConfig that do not affect the weights, and the effect of a
# difference.
EFFECTS = {
    "activation": "outputs differ by about 2e-4",
    "layer_norm_epsilon": "outputs differ slightly",
    "stem_epsilons": "outputs differ by about 2e-4",
    "pooling": "the head reads other features",
    **{
        field: "outputs differ"
        for field in LATER_FIELDS
        # Without an effect: the weights are added to others, or are zero.
        if field not in ("use_prefix_positions", "qkv_bias", "use_patch_bias")
    },
    **dict.fromkeys(ROTARY_CHOICES, "outputs differ"),
}
