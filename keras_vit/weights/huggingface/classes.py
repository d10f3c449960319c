"""The classes of transformers that models are written for."""

from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface.descriptions import (
    describe_aimv2,
    describe_beit,
    describe_dinov2,
    describe_dinov3,
    describe_vit,
)
from keras_vit.weights.huggingface.names import (
    AIMV2_NAMES,
    DINOV2_NAMES,
    DINOV3_NAMES,
    MLP_NAMES,
    PACKED_NAMES,
)
from keras_vit.weights.huggingface.requirements import (
    HIDDEN_ACTS,
    problems_of_aimv2,
    problems_of_beit,
    problems_of_clip,
    problems_of_deit,
    problems_of_dinov2,
    problems_of_dinov3,
    problems_of_ijepa,
    problems_of_siglip,
    problems_of_vit,
)
from keras_vit.weights.layouts import Changes


class ClassFamily(NamedTuple):
    """A family of classes with one configuration.

    Args:
        model_type: The `model_type` of its configuration.
        fits: Returns whether a model is of this family, if of any.
        later_fields: Fields of ViTConfig after 2021 that it can express.
        problems: Returns what the family requires, and whether a model lacks
            it.
        kinds: Names of the class without and with a head; None if there is
            none.
        prefix: Prefix of the names in a class with a head.
        changes: Further changes of the names.
        describe: Returns the entries of config.json beside the common ones.
        gated_changes: Changes before these, for models with a gated MLP.
    """

    model_type: str
    fits: Callable[[ViTConfig], bool]
    later_fields: tuple[str, ...]
    problems: Callable[[ViTConfig], dict[str, bool]]
    kinds: tuple[str | None, str | None]
    prefix: str
    changes: Changes = ()
    describe: Callable[[ViTConfig], dict] = lambda config: {}
    gated_changes: Changes = ()

    def explain_refusal(self, config: ViTConfig) -> str | None:
        """Return why the family cannot express a model, or None.

        Args:
            config: Configuration of the model.
        """
        headless, _ = self.kinds
        problems = {
            "its models have no ResNet stem": config.stem_stages is not None,
            f"it has no activation {config.activation!r}": (
                config.activation not in HIDDEN_ACTS
            ),
            "its classifier returns one output per image": (
                config.pooling == "none" and config.num_classes > 0
            ),
            f"{headless} has no classifier": (
                config.num_classes > 0 and self.kinds[1] is None
            ),
            "the code of its class computes square images alone": (
                config.image_size[0] != config.image_size[1]
                and self.model_type not in WITH_RECTANGLES
            ),
            **self.problems(config),
        }
        found = (text for text, holds in problems.items() if holds)
        return next(found, None)

    def kind_of(self, config: ViTConfig) -> str:
        """Return the name of the class of a model.

        Args:
            config: Configuration of the model.
        """
        return self.kinds[1 if config.num_classes else 0]

    def names_of(self, config: ViTConfig) -> Changes:
        """Return the changes of the usual names for the class of a model.

        Args:
            config: Configuration of the model.
        """
        prefix = self.prefix if config.num_classes else ""
        gated = self.gated_changes if config.use_gated_mlp else ()
        return (*gated, *self.changes, (r"^(vit|vision_model)\.", prefix))


def find_class_family(config: ViTConfig) -> ClassFamily:
    """Return the family of classes that fits a model.

    Args:
        config: Configuration of the model.
    """
    return next(family for family in CLASS_FAMILIES if family.fits(config))


def make_config_json(config: ViTConfig) -> dict:
    """Return the content of `config.json`.

    Args:
        config: Configuration of the model.
    """
    family = find_class_family(config)
    height, width = config.image_size
    found = {
        "architectures": [family.kind_of(config)],
        "model_type": family.model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": HIDDEN_ACTS[config.activation],
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "torch_dtype": "float32",
        **family.describe(config),
    }
    if config.num_classes:
        labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        found["id2label"] = labels
        found["label2id"] = {label: int(i) for i, label in labels.items()}
    return found


# Families whose code runs on a model whose images are not square.
WITH_RECTANGLES = ("vit", "deit", "ijepa", "dinov3_vit")
# The first row that fits counts.
CLASS_FAMILIES = (
    ClassFamily(
        "aimv2_vision_model",
        lambda config: (
            config.norm == "rms" and config.rotary_positions == "none"
        ),
        ("norm", "use_patch_norm", "use_block_bias", "qkv_bias")
        + ("use_gated_mlp", "activation", "pooling"),
        problems_of_aimv2,
        ("Aimv2VisionModel", None),
        "",
        AIMV2_NAMES,
        describe_aimv2,
    ),
    ClassFamily(
        "clip_vision_model",
        lambda config: config.use_embedding_norm,
        ("use_embedding_norm", "use_patch_bias", "activation"),
        problems_of_clip,
        ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
        "vision_model.",
        ((r"^classifier\.", "visual_projection."),),
        lambda config: {"projection_dim": config.num_classes or 512},
    ),
    ClassFamily(
        "siglip_vision_model",
        lambda config: config.pooling == "map" and not config.use_class_token,
        ("activation",),
        problems_of_siglip,
        ("SiglipVisionModel", None),
        "",
        (),
        lambda config: {"vision_use_head": True},
    ),
    ClassFamily(
        "dinov3_vit",
        lambda config: config.rotary_positions == "centered",
        ("rotary_positions", "num_registers", "layer_scale_init", "qkv_bias")
        + ("use_gated_mlp", "use_prefix_positions", "activation"),
        problems_of_dinov3,
        ("DINOv3ViTModel", None),
        "",
        DINOV3_NAMES,
        describe_dinov3,
    ),
    ClassFamily(
        "beit",
        lambda config: (
            config.relative_positions == "table"
            or config.qkv_bias == "query_value"
        ),
        ("relative_positions", "qkv_bias", "layer_scale_init"),
        problems_of_beit,
        ("BeitModel", "BeitForImageClassification"),
        "beit.",
        (),
        describe_beit,
    ),
    ClassFamily(
        "deit",
        lambda config: config.pooling == "distilled",
        ("use_distillation_token", "pooling"),
        problems_of_deit,
        ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
        "deit.",
        (),
        describe_vit,
    ),
    ClassFamily(
        "deit",
        lambda config: config.use_distillation_token,
        ("use_distillation_token", "pooling"),
        problems_of_deit,
        ("DeiTModel", "DeiTForImageClassification"),
        "deit.",
        (),
        describe_vit,
    ),
    ClassFamily(
        "dinov2_with_registers",
        lambda config: (
            config.layer_scale_init is not None and config.num_registers > 0
        ),
        ("num_registers", "layer_scale_init", "use_gated_mlp", "activation")
        + ("pooling", "use_prefix_positions"),
        problems_of_dinov2,
        (
            "Dinov2WithRegistersModel",
            "Dinov2WithRegistersForImageClassification",
        ),
        "dinov2_with_registers.",
        (*DINOV2_NAMES, *MLP_NAMES),
        describe_dinov2,
        PACKED_NAMES,
    ),
    ClassFamily(
        "dinov2",
        lambda config: config.layer_scale_init is not None,
        ("layer_scale_init", "use_gated_mlp", "activation", "pooling"),
        problems_of_dinov2,
        ("Dinov2Model", "Dinov2ForImageClassification"),
        "dinov2.",
        (*DINOV2_NAMES, *MLP_NAMES),
        describe_dinov2,
        PACKED_NAMES,
    ),
    ClassFamily(
        "ijepa",
        lambda config: (
            not config.use_class_token and config.pooling in ("avg", "none")
        ),
        (),
        problems_of_ijepa,
        ("IJepaModel", "IJepaForImageClassification"),
        "ijepa.",
        (),
        describe_vit,
    ),
    ClassFamily(
        "vit",
        lambda config: True,
        ("activation",),
        problems_of_vit,
        ("ViTModel", "ViTForImageClassification"),
        "vit.",
        (),
        describe_vit,
    ),
)
