"""The model of a recipe: its objective, its patch sizes, what is trained.

It is new, from a `.keras` file, or from a checkpoint.
"""

import dataclasses

import keras

from keras_vit import from_checkpoint
from keras_vit.layers import POOLINGS
from keras_vit.models import (
    VARIANTS,
    DenseConfig,
    DensePredictor,
    FlexibleVisionTransformer,
    VisionTransformer,
    dense_predictor,
)
from keras_vit.models.tuning import TunableModel, copy_model, train_layer
from keras_vit.pretraining import (
    MaskedAutoencoder,
    MaskedPatchPrediction,
    PretrainingModel,
    fix_positions,
)
from keras_vit.weights.dense import dense_from_checkpoint, is_dense_checkpoint
from keras_vit.weights.families.family import HEAD_LAYERS
from trainers.data.datasets import ImageDataset
from trainers.data.labels import SEGMENT
from trainers.models.initial_model import (
    copy_with_new,
    explain_other_classes,
    find_model_file,
    load_initial_model,
)
from trainers.models.resnets import (
    build_baseline,
    find_bit,
    load_bit_checkpoint,
)
from trainers.recipes.baselines import BASELINES
from trainers.recipes.recipe import (
    ALL,
    CLASSIFY,
    MASK_RATIOS,
    PRECISIONS,
    Recipe,
)


def add_objective(encoder: VisionTransformer, recipe: Recipe) -> keras.Model:
    """Return the model to train: the encoder itself, or one around it.

    Raises:
        ValueError: If the encoder cannot learn without labels.
    """
    if recipe.objective == CLASSIFY or isinstance(encoder, DensePredictor):
        return encoder
    if not isinstance(encoder, VisionTransformer):
        raise ValueError(
            f"`objective` {recipe.objective!r} needs a VisionTransformer. "
            f"Received: init_from={recipe.init_from!r}, a {encoder.name}"
        )
    ratio = recipe.mask_ratio or MASK_RATIOS[recipe.objective]
    if recipe.objective == "masked_patches":
        return MaskedPatchPrediction(encoder, ratio, recipe.patch_target)
    if not recipe.init_from:
        fix_positions(encoder)
    return MaskedAutoencoder(
        encoder,
        ratio,
        decoder_width=recipe.decoder_width,
        decoder_depth=recipe.decoder_depth,
        decoder_heads=recipe.decoder_heads,
        normalize_pixels=recipe.normalize_pixels,
    )


def class_names_of(recipe: Recipe, dataset: ImageDataset) -> list[str]:
    """Return the classes that the model learns; none without labels."""
    return dataset.class_names if recipe.needs_labels else []


def choose_trained(model: keras.Model, recipe: Recipe):
    """Freeze the weights that `recipe` does not train; add LoRA weights.

    Raises:
        ValueError: If the model has fewer blocks than the recipe trains, or a
            kernel is smaller than the rank of its update. If it is not a
            VisionTransformer, and the recipe chooses.
    """
    parts, num_last_blocks = recipe.trained_parts
    is_chosen = recipe.lora_rank or recipe.train_only is not None
    if is_chosen and not isinstance(model, TunableModel):
        raise ValueError(
            "`train_only` and `lora_rank` need a VisionTransformer. "
            f"Received: init_from={recipe.init_from!r}, a {model.name}"
        )
    if num_last_blocks and num_last_blocks > model.config.depth:
        raise ValueError(
            "`train_only` must name at most as many last blocks as the model "
            f"has blocks, {model.config.depth}. "
            f"Received: train_only={recipe.train_only!r}"
        )
    if recipe.lora_rank:
        model.enable_lora(
            recipe.lora_rank,
            recipe.lora_layer_names,
            alpha=recipe.lora_alpha,
            keep=parts or ["head"],
        )
    elif parts == [ALL]:
        model.unfreeze()
    elif recipe.train_only is not None:
        model.freeze(keep=parts, num_last_blocks=num_last_blocks)
    if is_chosen:
        # A pooling or another layer below a new head is random: it learns too.
        report = getattr(model, "load_report", None)
        new = {path.split("/")[0] for path in report.reset} if report else ()
        for name in ("pooling", "pre_logits", *LAST_NORMS):
            if name in new:
                train_layer(model, name)


def plain_model(model: keras.Model, recipe: Recipe) -> keras.Model:
    """Return the model to keep: without LoRA, frozen as before the recipe.

    Of a model that learns without labels, this is the encoder.

    What `recipe` froze is trainable again, so that another run from this
    model trains all weights unless its recipe freezes some.
    """
    if isinstance(model, PretrainingModel):
        model = model.encoder
    elif not isinstance(model, TunableModel) or (
        recipe.train_only is None and not recipe.lora_rank
    ):
        return model
    plain = model.merge_lora()  # A copy: the run may go on with `model`.
    plain.unfreeze()
    return plain


@dataclasses.dataclass(frozen=True)
class FixedPatchSize:
    """A flexible model that cuts all images into patches of one size."""

    flexible: FlexibleVisionTransformer
    patch_size: int

    def __call__(self, images, training=False):
        return self.flexible(
            images, patch_size=self.patch_size, training=training
        )

    def stateless_call(self, *arguments, **options):
        """Call the flexible model with patches of this size."""
        return self.flexible.stateless_call(
            *arguments, patch_size=self.patch_size, **options
        )


def with_other_tokens(
    model: keras.Model,
    patch_size: int | None = None,
    merged_tokens: int | None = None,
) -> keras.Model:
    """Return a model that makes other tokens of the same images.

    Args:
        model: The model.
        patch_size: Side of a patch in pixels; None for that of the model.
        merged_tokens: Number of patches that each block merges; None for that
            of the model.

    Raises:
        ValueError: If the model is not a VisionTransformer, its images are
            not a whole number of these patches, or it cannot merge tokens.
    """
    changes = {"patch_size": patch_size, "merged_tokens": merged_tokens}
    changes = _given(changes)
    if changes and not isinstance(model, VisionTransformer):
        [name, *_] = changes
        raise ValueError(
            f"`{name}` needs a VisionTransformer. Received: "
            f"{name}={changes[name]}, model={model.name!r}"
        )
    if patch_size is not None:
        model = model.with_image_size(model.config.image_size, patch_size)
    if merged_tokens is not None:
        model = model.with_merged_tokens(merged_tokens)
    return model


def make_variants(
    recipe: Recipe, model: keras.Model
) -> tuple[FixedPatchSize, ...]:
    """Return the model with each of the patch sizes of a recipe.

    Raises:
        ValueError: If the model cannot have patches of several sizes, or an
            image is smaller than a patch.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.3.
    """
    sizes = recipe.patch_size_list
    if not sizes:
        return ()
    if max(sizes) > recipe.image_size:
        raise ValueError(
            "`patch_sizes` must be at most the side of the images. Received: "
            f"patch_sizes={recipe.patch_sizes!r}, "
            f"image_size={recipe.image_size}"
        )
    try:
        flexible = FlexibleVisionTransformer(model)
    except ValueError as error:
        raise ValueError(f"`patch_sizes` cannot be used: {error}") from None
    return tuple(FixedPatchSize(flexible, size) for size in sizes)


def build_model(recipe: Recipe, dataset: ImageDataset) -> keras.Model:
    """Return the model of `recipe` for the images and classes of `dataset`.

    What the recipe does not train is frozen. Without labels to learn, it is a
    model around an encoder without a head.

    Raises:
        ValueError: If the model cannot be built, or `init_from` is neither a
            VisionTransformer, a BiT ResNet nor a checkpoint, or has another
            number of channels.
    """
    model = _build_whole(recipe, dataset)
    if isinstance(model, VisionTransformer):
        model = _change_pooling(model, recipe)
    if recipe.has_maps:
        model = add_dense_head(model, recipe, dataset.class_names)
    if isinstance(model, TunableModel):
        # The file of the model says how the run prepared its images, and what
        # its outputs mean, also where it is moved to.
        changes = {"preprocessing": recipe.preprocessing}
        if isinstance(model, VisionTransformer):
            names = class_names_of(recipe, dataset)
            changes["class_names"] = tuple(names) or None
            changes["probabilities"] = recipe.activation if names else None
        model.config = dataclasses.replace(model.config, **changes)
    choose_trained(model, recipe)
    return add_objective(model, recipe)


def add_dense_head(
    model: keras.Model, recipe: Recipe, class_names: list[str]
) -> DensePredictor:
    """Return a model with an answer for each pixel.

    Args:
        model: An encoder, or the model of such a run. Its head stays if it is
            that of the recipe and its classes are these.
        recipe: The recipe.
        class_names: Names of the classes of the pixels; none of depths.

    Raises:
        ValueError: If the model has no blocks, or the head does not fit.
    """
    if not isinstance(model, TunableModel):
        raise ValueError(
            f"`objective` {recipe.objective!r} needs a VisionTransformer. "
            f"Received: init_from={recipe.init_from!r}, a {model.name}"
        )
    blocks = recipe.dense_block_list or (-1,)
    if recipe.dense_head == "dpt" and not recipe.dense_block_list:
        depth = model.config.depth
        blocks = tuple(-(-depth * part // 4) - 1 for part in (1, 2, 3, 4))
    choices, is_segment = {"num_outputs": 1}, recipe.objective == SEGMENT
    if is_segment:
        names = tuple(class_names)
        choices = {"num_outputs": len(names), "class_names": names}
    elif recipe.depth_loss == "metric":
        choices |= {"activation": "sigmoid", "output_scale": recipe.max_depth}
    if recipe.dense_head == "dpt":
        # Relative to the encoder, as those of DPT are to that of L/16.
        width = model.config.width
        choices |= {
            "stage_widths": tuple(width * n // 8 for n in (1, 2, 4, 8)),
            "width": max(width // 4, 16),
            "output_width": None if is_segment else max(width // 32, 8),
        }
    head = DenseConfig(head=recipe.dense_head, blocks=blocks, **choices)
    if isinstance(model, VisionTransformer):
        return dense_predictor(model, head)
    theirs = model.head
    is_kept = theirs.head == head.head and model.task == recipe.objective
    if is_segment:
        is_kept &= theirs.num_outputs == head.num_outputs
        is_kept &= theirs.class_names in (None, head.class_names)
    else:
        has_metres = recipe.depth_loss == "metric"
        is_kept &= model.larger_depths == ("far" if has_metres else "near")
        is_kept &= theirs.output_scale == head.output_scale
    # The recipe leaves its sizes open, and its blocks if it names none.
    is_kept &= recipe.init_head != "reset"
    if named := recipe.dense_block_list:
        depth = model.config.depth
        own = [n % depth if -depth <= n < depth else None for n in named]
        is_kept &= tuple(own) == theirs.blocks
    if is_kept:
        return model
    return dense_predictor(encoder_of(model), head)


def encoder_of(model: DensePredictor) -> VisionTransformer:
    """Return the encoder of a model with an answer for each pixel."""
    encoder = VisionTransformer(model.config, dtype=model.dtype_policy)
    for weight in encoder.weights:
        found = next(w for w in model.weights if w.path == weight.path)
        weight.assign(found)
    return encoder


def _build_whole(recipe, dataset):
    class_names = [] if recipe.has_maps else class_names_of(recipe, dataset)
    num_classes = len(class_names)
    dtype = PRECISIONS[recipe.precision].policy
    if not recipe.init_from and recipe.model in BASELINES:
        return build_baseline(
            recipe.model,
            image_size=recipe.image_size,
            channels=dataset.channels,
            num_classes=num_classes,
            dtype=dtype,
            head_bias=recipe.head_bias,
        )
    if not recipe.init_from:
        return _build_variant(recipe, dataset.channels, num_classes, dtype)
    path = find_model_file(recipe.init_from)
    if not path.endswith(".keras"):
        return _load_checkpoint(recipe, dataset.channels, num_classes, dtype)
    is_other = explain_other_classes(recipe, class_names) is not None
    model = load_initial_model(
        path,
        recipe.image_size,
        num_classes,
        dataset.channels,
        "reset" if is_other else recipe.init_head,
        dtype,
        representation_size=recipe.representation_size,
        head_bias=recipe.head_bias,
    )
    if isinstance(model, TunableModel):
        changes = _training_options(recipe)
        del changes["head_bias"]
        copy = copy_model(model, **_given(changes))
        copy.load_report = model.load_report
        return copy
    return model


LAST_NORMS = ("encoder_norm", "pooling_norm")


def _change_pooling(model, recipe):
    """Return the model, or a copy that pools as the recipe says.

    The head is new, since it reads other features; so is a norm at another
    place.
    """
    changes = {
        name: value
        for name, value in _given(_pooling_options(recipe)).items()
        if value != getattr(model.config, name)
    }
    if not changes:
        return model
    new_norms = LAST_NORMS if "use_pooling_norm" in changes else ()
    names = ("pooling", *new_norms, *HEAD_LAYERS)
    copy = copy_with_new(model, names, **changes)
    report = getattr(model, "load_report", None)
    if report:
        copy.load_report = report.with_reset(
            w.path for w in copy.weights if w.path.split("/")[0] in names
        )
    return copy


def _build_variant(recipe, channels, num_classes, dtype):
    config = VARIANTS[recipe.model].config
    changes = {
        **_sizes(recipe, config),
        "image_size": recipe.image_size,
        "channels": channels,
        "num_classes": num_classes,
        "patch_size": recipe.patch_size,
        **_pooling_options(recipe),
        "position_embedding": recipe.position_embedding,
        "position_placement": recipe.position_placement,
        "relative_positions": recipe.relative_positions,
        "activation": recipe.mlp_activation,
        "representation_size": recipe.representation_size,
        **_training_options(recipe),
    }
    pooling = POOLINGS.get(recipe.pooling)
    if pooling and pooling.needed_token == "distillation":
        changes |= {"use_class_token": True, "use_distillation_token": True}
    config = dataclasses.replace(config, **_given(changes))
    return VisionTransformer(config, dtype=dtype)


def _sizes(recipe, config):
    """Return the options of the blocks; heads keep their size by default."""
    num_heads = recipe.num_heads
    if recipe.width and not num_heads:
        if recipe.width % config.head_size:
            raise ValueError(
                "`width` must be a multiple of the size of a head of "
                f"{recipe.model}, {config.head_size}, or `num_heads` must be "
                f"given. Received: width={recipe.width}"
            )
        num_heads = recipe.width // config.head_size
    return {
        "depth": recipe.depth,
        "width": recipe.width,
        "mlp_dim": recipe.mlp_dim,
        "num_heads": num_heads,
    }


def _load_checkpoint(recipe, channels, num_classes, dtype):
    bit_path = find_bit(recipe.init_from)
    if bit_path:
        return load_bit_checkpoint(
            bit_path,
            image_size=recipe.image_size,
            channels=channels,
            num_classes=num_classes,
            head=recipe.init_head,
            head_bias=recipe.head_bias,
            dtype=dtype,
        )
    options = _given(_training_options(recipe))
    if recipe.has_maps and is_dense_checkpoint(recipe.init_from):
        whole = dense_from_checkpoint(
            recipe.init_from, image_size=recipe.image_size, dtype=dtype
        )
        model = copy_model(whole, **options)
        model.load_report = whole.load_report
        return model
    if recipe.init_head == "reset":
        # As in the official fine-tuning, a new head does not keep the tanh
        # layer of the old one.
        options["representation_size"] = recipe.representation_size
    return from_checkpoint(
        recipe.init_from,
        image_size=recipe.image_size,
        classes=num_classes,
        channels=channels,
        dtype=dtype,
        head=recipe.init_head,
        classifier_activation="linear",  # The losses take logits.
        num_heads=recipe.num_heads or "published",
        architecture=recipe.architecture,
        preprocessing=recipe.preprocessing,
        **options,
    )


def _pooling_options(recipe):
    """Return the options of the pooling, also of an initial model."""
    return {
        "pooling": recipe.pooling,
        "use_pooling_norm": recipe.use_pooling_norm,
    }


def _training_options(recipe):
    """Return the options of a model that a checkpoint does not contain."""
    return {
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "head_bias": recipe.head_bias,
        "use_remat": recipe.use_remat,
        **_token_options(recipe),
    }


def _token_options(recipe):
    """Return the options of models that read fewer patches."""
    return {
        "patch_dropout_rate": recipe.patch_dropout_rate,
        "merged_tokens": recipe.merged_tokens,
    }


def _given(choices):
    """Return the choices that are not None; the model sets the others."""
    return {name: x for name, x in choices.items() if x is not None}


def check_trainable(model: keras.Model, recipe: Recipe):
    """Raise a ValueError if `model` cannot be trained or drawn."""
    rank = 4 if recipe.has_maps else 2
    is_other = recipe.needs_labels and len(model.output_shape) != rank
    if is_other or not model.trainable_variables:
        what = "a pixel" if recipe.has_maps else "an image"
        raise ValueError(
            f"The model must give one prediction {what} and have weights that "
            f"are not frozen. Received: output_shape={model.output_shape}, "
            f"{len(model.trainable_variables)} trainable weights "
            f"(pooling={recipe.pooling!r}, init_from={recipe.init_from!r})"
        )
    is_vit = isinstance(model, VisionTransformer)
    if recipe.log_attention and not (is_vit and not model.config.merged_tokens):
        raise ValueError(
            "`log_attention` needs a VisionTransformer that merges no tokens. "
            f"Received: log_attention={recipe.log_attention}, "
            f"model={recipe.model!r}, merged_tokens={recipe.merged_tokens}"
        )
