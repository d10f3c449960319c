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
from keras_vit.weights.huggingface.requirements import (
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

ACTIVATIONS = {
    "exact": "gelu",
    "tanh": "gelu_pytorch_tanh",
    "quick": "quick_gelu",
    "silu": "silu",
}
# What DINOv2 and later models call the layers of a block.
DINOV2_NAMES = (
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".layer_scale\1.lambda1"),
)
PACKED_NAMES = (
    (r"\.intermediate\.dense\.", ".mlp.weights_in."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.weights_out."),
)
Changes = tuple[tuple[str, str], ...]


class Target(NamedTuple):
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
            "its classifier returns one output per image": (
                config.pooling == "none" and config.num_classes > 0
            ),
            f"{headless} has no classifier": (
                config.num_classes > 0 and self.kinds[1] is None
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


def find_target(config: ViTConfig) -> Target:
    """Return the family of classes that fits a model.

    Args:
        config: Configuration of the model.
    """
    return next(target for target in TARGETS if target.fits(config))


def make_config_json(config: ViTConfig) -> dict:
    """Return the content of `config.json`.

    Args:
        config: Configuration of the model.
    """
    target = find_target(config)
    height, width = config.image_size
    found = {
        "architectures": [target.kind_of(config)],
        "model_type": target.model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATIONS[config.activation],
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "torch_dtype": "float32",
        **target.describe(config),
    }
    if config.num_classes:
        labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        found["id2label"] = labels
        found["label2id"] = {label: int(i) for i, label in labels.items()}
    return found


# The first row that fits counts.
TARGETS = (
    Target(
        "aimv2_vision_model",
        lambda config: config.norm == "rms",
        ("norm", "use_patch_norm", "use_block_bias", "qkv_bias")
        + ("use_gated_mlp", "activation", "pooling"),
        problems_of_aimv2,
        ("Aimv2VisionModel", None),
        "",
        (
            (r"\.patch_embedding\.", ".patch_embed."),
            (r"\.layer_norm([12])\.", r".rms_norm\1."),
            (r"\.self_attn\.", ".attention."),
            (r"\.mlp\.gate\.", ".ffn.gate_proj."),
            (r"\.mlp\.fc1\.", ".ffn.up_proj."),
            (r"\.mlp\.fc2\.", ".ffn.down_proj."),
            (r"\.post_layernorm\.", ".rms_norm."),
            (r"\.head\.probe$", ".head.cls_token"),
            (r"\.head\.attention\.key\.", ".head.k_proj."),
            (r"\.head\.attention\.value\.", ".head.v_proj."),
            (r"\.head\.attention\.out_proj\.", ".head.output_proj."),
        ),
        describe_aimv2,
    ),
    Target(
        "clip_vision_model",
        lambda config: config.use_embedding_norm,
        ("use_embedding_norm", "use_patch_bias", "activation"),
        problems_of_clip,
        ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
        "vision_model.",
        ((r"^classifier\.", "visual_projection."),),
        lambda config: {"projection_dim": config.num_classes or 512},
    ),
    Target(
        "siglip_vision_model",
        lambda config: config.pooling == "map" and not config.use_class_token,
        ("activation",),
        problems_of_siglip,
        ("SiglipVisionModel", None),
        "",
        (),
        lambda config: {"vision_use_head": True},
    ),
    Target(
        "dinov3_vit",
        lambda config: config.rotary_positions == "centered",
        ("rotary_positions", "num_registers", "layer_scale_init", "qkv_bias")
        + ("use_gated_mlp", "use_prefix_positions", "activation"),
        problems_of_dinov3,
        ("DINOv3ViTModel", None),
        "",
        (
            *DINOV2_NAMES,
            (r"\.attention\.attention\.query\.", ".attention.q_proj."),
            (r"\.attention\.attention\.key\.", ".attention.k_proj."),
            (r"\.attention\.attention\.value\.", ".attention.v_proj."),
            (r"\.attention\.output\.dense\.", ".attention.o_proj."),
            (r"\.intermediate\.gate\.", ".mlp.gate_proj."),
            (r"\.intermediate\.dense\.", ".mlp.up_proj."),
            (r"(\d)\.output\.dense\.", r"\1.mlp.down_proj."),
            (r"\.patch_embeddings\.projection\.", ".patch_embeddings."),
            (r"^vit\.encoder\.", "vit."),
            (r"^vit\.layernorm\.", "vit.norm."),
        ),
        describe_dinov3,
    ),
    Target(
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
    Target(
        "deit",
        lambda config: config.pooling == "distilled",
        ("use_distillation_token", "pooling"),
        problems_of_deit,
        ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
        "deit.",
        (),
        describe_vit,
    ),
    Target(
        "deit",
        lambda config: config.use_distillation_token,
        ("use_distillation_token", "pooling"),
        problems_of_deit,
        ("DeiTModel", "DeiTForImageClassification"),
        "deit.",
        (),
        describe_vit,
    ),
    Target(
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
        (
            *DINOV2_NAMES,
            (r"\.intermediate\.dense\.", ".mlp.fc1."),
            (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
        ),
        describe_dinov2,
        PACKED_NAMES,
    ),
    Target(
        "dinov2",
        lambda config: config.layer_scale_init is not None,
        ("layer_scale_init", "use_gated_mlp", "activation", "pooling"),
        problems_of_dinov2,
        ("Dinov2Model", "Dinov2ForImageClassification"),
        "dinov2.",
        (
            *DINOV2_NAMES,
            (r"\.intermediate\.dense\.", ".mlp.fc1."),
            (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
        ),
        describe_dinov2,
        PACKED_NAMES,
    ),
    Target(
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
    Target(
        "vit",
        lambda config: True,
        (),
        problems_of_vit,
        ("ViTModel", "ViTForImageClassification"),
        "vit.",
        (),
        describe_vit,
    ),
)
