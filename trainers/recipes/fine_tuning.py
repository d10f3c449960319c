"""The fields of a recipe that choose which weights are trained."""

import re

from keras_vit.tables import pick
from trainers.recipes.baselines import BASELINES
from trainers.recipes.model_options import ModelOptions
from trainers.recipes.options import check_unused

# The keys of PARTS and LORA_LAYERS of `keras_vit.models.tuning`, which needs
# Keras.
PARTS = ("head", "norms", "biases", "positions", "class_token")
LORA_LAYERS = ("qkv", "out", "mlp_hidden", "mlp_out", "head")
ALL, LAST_BLOCKS = "all", "last_blocks:N"
# Fields that need LoRA, and the value that does without it.
NEEDS_LORA = {
    name: ModelOptions.__dataclass_fields__[name].default
    for name in ("lora_layers", "lora_alpha")
}


def check_fine_tuning(options: ModelOptions):
    """Raise a ValueError if the fields are invalid or contradict each other."""
    parts, num_last_blocks = read_train_only(options)
    read_lora_layers(options)
    if not options.lora_rank:
        needed = "a positive `lora_rank`"
        check_unused(options, NEEDS_LORA, needed, "lora_rank")
    if options.lora_rank and (ALL in parts or num_last_blocks):
        raise ValueError(
            "`train_only` must be parts such as 'head,norms' with LoRA, whose "
            "kernels are frozen. Received: "
            f"train_only={options.train_only!r}, lora_rank={options.lora_rank}"
        )
    is_chosen = options.train_only is not None or options.lora_rank
    if is_chosen and not options.init_from and options.model in BASELINES:
        raise ValueError(
            "`train_only` and `lora_rank` need a VisionTransformer. "
            f"Received: model={options.model!r}"
        )


def read_train_only(options: ModelOptions) -> tuple[list[str], int]:
    """Return the parts of `train_only` and its number of last blocks.

    Raises:
        ValueError: If a part is unknown, or "all" has another part beside it.
    """
    names = _split(options.train_only or "")
    blocks = [re.fullmatch(r"last_blocks:(\d+)", name) for name in names]
    parts = [name for name, block in zip(names, blocks) if not block]
    numbers = [int(block[1]) for block in blocks if block]
    for name in parts:
        known = dict.fromkeys((*PARTS, ALL, LAST_BLOCKS))
        if name == LAST_BLOCKS:
            name = "last_blocks"
        pick(known, name, "train_only")
    if len(numbers) > 1 or (ALL in parts and len(names) > 1):
        raise ValueError(
            "`train_only` must be 'all', or parts with at most one "
            f"last_blocks:N. Received: train_only={options.train_only!r}"
        )
    return parts, max(numbers, default=0)


def read_lora_layers(options: ModelOptions) -> list[str]:
    """Return the names of the layers with LoRA.

    Raises:
        ValueError: If a name is unknown, or there is none.
    """
    names = _split(options.lora_layers)
    for name in names or [""]:
        pick(dict.fromkeys(LORA_LAYERS), name, "lora_layers")
    return names


def _split(text):
    return [name.strip() for name in text.split(",") if name.strip()]
