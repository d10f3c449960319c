"""The field of a recipe that lists several patch sizes."""

from trainers.recipes.model_options import ModelOptions


def read_patch_sizes(options: ModelOptions) -> tuple[int, ...]:
    """Return the patch sizes to train with; () for the one of the model.

    Raises:
        ValueError: If one is not a positive whole number, or the model cannot
            have several.
    """
    text = options.patch_sizes
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(
            "`patch_sizes` must be numbers of pixels such as '4,6,8'. "
            f"Received: patch_sizes={text!r}"
        )
    if words and options.pooling == "distilled":
        raise ValueError(
            "`patch_sizes` and a distillation token do not go together. "
            f"Received: patch_sizes={text!r}, "
            f"pooling={options.pooling!r}"
        )
    return tuple(map(int, words))
