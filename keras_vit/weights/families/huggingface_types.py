"""MODEL_TYPES: what transformers computes for a `model_type` of config.json.

Source: the model definitions of transformers 5.23.
"""

from keras_vit.models.config import ViTConfig
from keras_vit.weights.families.family import LATER_FIELDS, Changes

# The names that some types write, from those above.
DINOV2_NAMES = (
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".layer_scale\1.lambda1"),
)
PACKED_NAMES = (
    (r"\.intermediate\.dense\.", ".mlp.weights_in."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.weights_out."),
)
MLP_NAMES = (
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
)
DINOV3_NAMES = (
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
)
AIMV2_NAMES = (
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
)


def find_type(config: ViTConfig) -> tuple[str, "ModelType"]:
    """Return the `model_type` that a model is written for."""
    return next(item for item in MODEL_TYPES.items() if item[1].fits(config))


# Values of fields that arrays show: any, or any but None.
ANY, SOME = "any", "some"
# What the arrays of the ViT of 2021 show.
PLAIN = {
    name: getattr(ViTConfig, name)
    for name in (
        "use_class_token",
        "use_pooling_norm",
        "representation_size",
        *LATER_FIELDS,
    )
}
COMMON = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
}


class ModelType:
    """What transformers computes for a `model_type` of config.json.

    A file without all arrays of a part may look like one of another model,
    whose outputs would be wrong, so `visible` is compared with the arrays.
    Keyword arguments replace attributes of the class.
    """

    # Entries of config.json that hold if its file does not state them.
    defaults = COMMON
    has_class_token = True
    has_timm_names = False  # Or those of code that timm reads.
    # Fields of ViTConfig that all models have and no array shows; among them
    # `position_resize`, unless it is PyTorch's bicubic.
    fields: dict = {}
    visible: dict = {}  # Fields that arrays show, if not those of PLAIN.

    # What follows is for types that are written: the names of the class without
    # and with a head, the prefix of the names in one with a head, and the
    # changes of the names, with a gated MLP before the others.
    kinds: tuple[str, str | None]
    prefix = ""
    changes: Changes = ()
    gated_changes: Changes = ()
    has_clip_names = False
    has_rectangles = False  # Whether its code runs if images are not square.

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def settings(self, json: dict, is_classifier: bool) -> dict:
        """Return the fields of ViTConfig that config.json decides."""
        return {}

    def expect(self, json: dict) -> dict:
        """Return the fields in `visible` that config.json decides."""
        return {}

    def problems(self, json: dict) -> dict[str, bool]:
        """Return parts that no VisionTransformer has: is one there?"""
        return {}

    def fits(self, config: ViTConfig) -> bool:
        """Return whether a model is of this type, if of any that is written."""
        return False

    def describe(self, config: ViTConfig) -> dict:
        """Return the entries of config.json beside those of all types."""
        return {}

    def kind(self, config: ViTConfig) -> str | None:
        """Return the name of the class of a model."""
        return self.kinds[bool(config.num_classes)]

    def visible_fields(self, json: dict) -> dict:
        """Return the fields that names and shapes must show."""
        gated = self.visible.get("use_gated_mlp", False)
        return {
            **PLAIN,
            "use_class_token": self.has_class_token,
            "num_registers": json.get("num_register_tokens", 0),
            **self.visible,
            **({"norm": "rms"} if json.get("norm_type") == "rms_norm" else {}),
            "use_gated_mlp": bool(
                json.get("use_swiglu_ffn") or json.get("use_gated_mlp", gated)
            ),
            **self.expect(json),
        }


class Vit(ModelType):
    """ViT, DeiT, MAE, MSN, I-JEPA and DPT."""

    visible = {"qkv_bias": ANY, "representation_size": ANY}
    has_rectangles = True

    def settings(self, json, is_classifier):
        if json["architectures"] == ["DeiTForImageClassificationWithTeacher"]:
            return {"pooling": "distilled"}
        return {}

    def describe(self, config):
        found = {
            "qkv_bias": config.qkv_bias != "none",
            "hidden_dropout_prob": config.dropout_rate,
            "attention_probs_dropout_prob": config.attention_dropout_rate,
            "initializer_range": 0.02,
            "encoder_stride": config.patch_size,
        }
        if config.representation_size:
            found["pooler_output_size"] = config.representation_size
            found["pooler_act"] = "tanh"
        return found

    def fits(self, config):
        return True  # The others are before it.


class Deit(Vit):
    """DeiT, with its distillation token."""

    visible = {**Vit.visible, "use_distillation_token": True}
    kinds, prefix = ("DeiTModel", "DeiTForImageClassification"), "deit."

    def kind(self, config):
        is_distilled = config.num_classes and config.pooling == "distilled"
        return super().kind(config) + "WithTeacher" * bool(is_distilled)

    def fits(self, config):
        return config.use_distillation_token


class Ijepa(Vit):
    """I-JEPA, without a class token."""

    has_class_token = False
    kinds, prefix = ("IJepaModel", "IJepaForImageClassification"), "ijepa."

    def fits(self, config):
        return not config.use_class_token and config.pooling in ("avg", "none")


class Beit(ModelType):
    """BEiT, Data2Vec and the tower of InternVL."""

    defaults = {**COMMON, "use_mean_pooling": True}
    visible = {
        "qkv_bias": ANY,
        "use_final_norm": ANY,
        "use_pooling_norm": ANY,
    }
    kinds, prefix = ("BeitModel", "BeitForImageClassification"), "beit."

    def settings(self, json, is_classifier):
        found = {
            "pooling": "avg" if json["use_mean_pooling"] else "token",
            "use_final_norm": not json["use_mean_pooling"],
        }
        if not json.get("use_absolute_position_embeddings"):
            found["position_embedding"] = "none"
        return found

    def expect(self, json):
        tables = [
            json.get(f"use_{kind}relative_position_bias")
            for kind in ("", "shared_")
        ]
        has_scale = json.get("layer_scale_init_value")
        return {
            "relative_positions": "table" if any(tables) else "none",
            "layer_scale_init": SOME if has_scale else ANY,
        }

    def problems(self, json):
        return {
            "RMS norms of queries and keys beside layer norms of tokens": (
                bool(json.get("use_qk_norm"))
                and json.get("norm_type") != "rms_norm"
            ),
        }

    def fits(self, config):
        has_table = config.relative_positions == "table"
        return has_table or config.qkv_bias == "query_value"

    def describe(self, config):
        averages = config.pooling == "avg"
        if averages != config.use_pooling_norm:
            raise ValueError(
                "its BEiT normalises the average, or else before the pooling"
            )
        if config.qkv_bias != "query_value":
            raise ValueError("its BEiT has biases of queries and values")
        is_shared = config.use_shared_relative_positions
        has_table = config.relative_positions == "table"
        return {
            "use_mean_pooling": averages,
            "use_relative_position_bias": has_table and not is_shared,
            "use_shared_relative_position_bias": is_shared,
            "use_absolute_position_embeddings": (
                config.position_embedding != "none"
            ),
            # With 0, BEiT would have no LayerScale.
            "layer_scale_init_value": config.layer_scale_init or 1e-5,
        }


class Dinov2(ModelType):
    """DINOv2 without registers."""

    changes, gated_changes = (*DINOV2_NAMES, *MLP_NAMES), PACKED_NAMES
    defaults = {**COMMON, "layer_norm_eps": 1e-6}
    visible = {"qkv_bias": ANY, "layer_scale_init": SOME}
    kinds, prefix = ("Dinov2Model", "Dinov2ForImageClassification"), "dinov2."

    def settings(self, json, is_classifier):
        return {"pooling": "token_and_avg"} if is_classifier else {}

    def fits(self, config):
        return config.layer_scale_init is not None

    def describe(self, config):
        found = {
            "layerscale_value": config.layer_scale_init,
            "qkv_bias": config.qkv_bias != "none",
            "use_swiglu_ffn": config.use_gated_mlp,
            "mlp_ratio": self._mlp_ratio(config),
            "apply_layernorm": True,
        }
        if config.use_gated_mlp:
            found["hidden_act"] = "gelu"  # Its gates are SiLU nevertheless.
        if config.num_registers:
            found["num_register_tokens"] = config.num_registers
        return found

    def _mlp_ratio(self, config) -> int:
        for ratio in range(1, 65):
            hidden = config.width * ratio
            if config.use_gated_mlp:
                hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
            if hidden == config.mlp_dim:
                return ratio
        raise ValueError("its MLP has a whole `mlp_ratio`")


class Dinov2WithRegisters(Dinov2):
    """DINOv2 with registers."""

    defaults = {**Dinov2.defaults, "num_register_tokens": 4}
    fields = {"position_resize": "bicubic_antialias"}
    visible = {**Dinov2.visible, "use_prefix_positions": ANY}
    kinds = (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    )
    prefix = "dinov2_with_registers."

    def expect(self, json):
        # Positions are added before the registers.
        return {"use_prefix_positions": not json["num_register_tokens"]}

    def fits(self, config):
        return super().fits(config) and config.num_registers > 0


class Centered(ModelType):
    """DINOv3 and Sapiens 2, which rotate queries and keys."""

    has_key_bias = False
    kinds = ("DINOv3ViTModel", None)
    has_rectangles = True
    defaults = {
        **COMMON,
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 6,
        "rope_theta": 100.0,
    }
    visible = {
        "rotary_positions": ANY,  # Not shown by arrays.
        "position_embedding": "none",
        "layer_scale_init": SOME,
        "use_prefix_positions": ANY,
    }

    def settings(self, json, is_classifier):
        return {
            "rotary_positions": "centered",
            "rotary_temperature": json["rope_theta"],
        }

    def expect(self, json):
        if json.get("key_bias", self.has_key_bias):
            return {"qkv_bias": "all"}
        has_bias = json.get("query_bias", True)
        return {"qkv_bias": "query_value" if has_bias else "none"}

    def problems(self, json):
        query, value, mlp, projections = (
            json.get(f"{part}_bias", True)
            for part in ("query", "value", "mlp", "proj")
        )
        return {
            "biases of the queries or of the values alone": query != value,
            "biases of the MLP or of the projections alone": mlp != projections,
        }

    def fits(self, config):
        return config.rotary_positions == "centered"

    def describe(self, config):
        return {
            "layerscale_value": config.layer_scale_init,
            "num_register_tokens": config.num_registers,
            "rope_theta": config.rotary_temperature,
            "use_gated_mlp": config.use_gated_mlp,
            "query_bias": config.qkv_bias != "none",
            "key_bias": config.qkv_bias == "all",
            "value_bias": config.qkv_bias != "none",
            "proj_bias": True,
            "mlp_bias": True,
            "apply_layernorm": True,
        }


class Clip(ModelType):
    """CLIP and MetaCLIP 2."""

    defaults = {**COMMON, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    visible = {"use_patch_bias": False, "use_embedding_norm": True}
    kinds = ("CLIPVisionModel", "CLIPVisionModelWithProjection")
    prefix, has_clip_names = "vision_model.", True
    changes = ((r"^classifier\.", "visual_projection."),)

    def settings(self, json, is_classifier):
        # The classifiers read the patches before the last norm.
        return {
            "pooling": "avg" if is_classifier else "token",
            "use_final_norm": not is_classifier,
        }

    def fits(self, config):
        return config.use_embedding_norm

    def describe(self, config):
        if config.pooling == "none":  # Its tokens are before the last norm.
            raise ValueError(
                "its CLIP pools by the class token, not by pooling='none'"
            )
        return {"projection_dim": config.num_classes or 512}


class Mlcd(Clip):
    """MLCD, with rotary positions."""

    defaults = {
        **Clip.defaults,
        "hidden_act": "gelu",
        "num_attention_heads": 16,
    }
    visible = {**Clip.visible, "rotary_positions": "axial_class"}
    visible |= {"position_embedding": "none"}

    def settings(self, json, is_classifier):
        parameters = json.get("rope_parameters") or {}
        return {
            "rotary_positions": "axial_class",
            "rotary_temperature": parameters.get("rope_theta", 10_000.0),
        }

    def problems(self, json):
        return {"grouped queries": json.get("num_key_value_groups", 1) != 1}


class Siglip(ModelType):
    """SigLIP and SigLIP 2."""

    defaults = {**Dinov2.defaults, "hidden_act": "gelu_pytorch_tanh"}
    has_class_token = False
    kinds, has_clip_names = ("SiglipVisionModel", None), True

    def settings(self, json, is_classifier):
        has_head = json.get("vision_use_head", True) and not is_classifier
        return {"pooling": "map" if has_head else "avg"}

    def fits(self, config):
        return config.pooling == "map" and not config.use_class_token

    def describe(self, config):
        return {"vision_use_head": True}


class Aimv2(ModelType):
    """AIMv2, with RMS norms and gates."""

    defaults = {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "num_attention_heads": 8,
    }
    has_class_token = False
    visible = {
        "norm": "rms",
        "use_patch_norm": True,
        "use_gated_mlp": True,
        "use_block_bias": False,
        "qkv_bias": "none",
    }
    kinds, has_clip_names = ("Aimv2VisionModel", None), True

    def settings(self, json, is_classifier):
        return {"pooling": "probe"} if json.get("use_head", True) else {}

    def problems(self, json):
        has_biases = bool(json.get("qkv_bias") or json.get("mlp_bias"))
        return {"biases in the blocks of AIMv2": has_biases}

    def fits(self, config):
        return config.norm == "rms" and config.rotary_positions == "none"

    def describe(self, config):
        return {
            "rms_norm_eps": config.layer_norm_epsilon,
            "use_head": config.pooling == "probe",
            "qkv_bias": False,
            "mlp_bias": False,
            "is_native": False,
        }


class InTimmNames(ModelType):
    """TIPSv2 and RADIO."""

    has_timm_names = True

    def expect(self, json):
        return {"qkv_bias": "all" if json.get("qkv_bias", True) else ANY}

    def problems(self, json):
        has_gate = bool(json.get("use_swiglu_ffn"))
        is_radio = json["model_type"] == "radio"
        return {"the gated MLP of RADIO": is_radio and has_gate}


# Those that are written come first; the first that fits a model counts.
MODEL_TYPES: dict[str, ModelType] = {
    "aimv2_vision_model": Aimv2(changes=AIMV2_NAMES),
    "clip_vision_model": Clip(),
    "siglip_vision_model": Siglip(),
    "dinov3_vit": Centered(changes=DINOV3_NAMES),
    "beit": Beit(),
    "deit": Deit(),
    "dinov2_with_registers": Dinov2WithRegisters(),
    "dinov2": Dinov2(),
    "ijepa": Ijepa(),
    "vit": Vit(kinds=("ViTModel", "ViTForImageClassification"), prefix="vit."),
    "vit_mae": Vit(),
    "vit_msn": Vit(defaults=Dinov2.defaults),
    "dpt": Vit(fields={"position_resize": "bilinear"}),
    "data2vec-vision": Beit(),
    "internvl_vision": Beit(
        defaults={
            **Dinov2.defaults,
            "num_attention_heads": 16,
            "use_mean_pooling": True,
        },
        visible={**Beit.visible, "qk_norm": ANY},
    ),
    "metaclip_2_vision_model": Clip(),
    "mlcd_vision_model": Mlcd(),
    "siglip2_vision_model": Siglip(
        fields={"position_resize": "bilinear_antialias"}
    ),
    "tipsv2_vision_model": InTimmNames(
        defaults={**Dinov2.defaults, "num_register_tokens": 1},
        fields={"position_resize": "bilinear_antialias"},
        visible={"layer_scale_init": SOME, "use_prefix_positions": ANY},
    ),
    "sapiens2": Centered(
        has_timm_names=True,
        has_key_bias=True,
        defaults={
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "num_attention_heads": 16,
            "rope_theta": 100.0,
            "num_register_tokens": 8,
        },
        fields={"layer_scale_branches": "attention"},
        visible={
            **Centered.visible,
            "norm": "rms",
            "use_gated_mlp": True,
            "layer_scale_branches": "attention",
            "qk_norm": ANY,
        },
    ),
    "radio": InTimmNames(
        defaults={**Dinov2.defaults, "num_attention_heads": 16},
        fields={
            "position_resize": "bilinear_square",
            "pooling": "prefix",
            "use_final_norm": False,
            "use_patch_bias": False,
        },
        visible={
            "use_patch_bias": False,
            "use_final_norm": False,
            "use_prefix_positions": ANY,
            "num_registers": ANY,
            "layer_scale_init": ANY,  # Its files may lack the factors.
        },
    ),
    "timm_wrapper": ModelType(defaults={}),
}
# Models of text and images -> the model_type of the image tower.
TOWERS = {
    "clip": "clip_vision_model",
    "metaclip_2": "metaclip_2_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
    "aimv2": "aimv2_vision_model",
    "internvl": "internvl_vision",
    "tipsv2": "tipsv2_vision_model",
}


def has_timm_names(json: dict) -> bool:
    """Return whether config.json is of a model whose arrays timm names."""
    kind = json.get("model_type")
    row = MODEL_TYPES.get(TOWERS.get(kind, kind))
    return row is not None and row.has_timm_names


def describe_tower(json: dict) -> dict:
    """Return the configuration of the image model, with its defaults.

    Raises:
        ValueError: If its model_type is not one of these.
    """
    if "model_type" not in json:
        return json
    kind, tower = json["model_type"], json
    if kind in TOWERS or isinstance(json.get("vision_config"), dict):
        tower = json.get("vision_config")
        tower = tower if isinstance(tower, dict) else {}
        older = json.get("vision_config_dict")
        if kind in ("clip", "metaclip_2") and isinstance(older, dict):
            # Of the first versions; what it leaves out has its default.
            tower = older
        kind = tower.get("model_type", TOWERS.get(kind))
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"its configuration has model_type={kind!r}, which is not a "
            f"Vision Transformer of {', '.join(MODEL_TYPES)}"
        )
    names = json.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    classes = None
    if name.endswith(("ImageClassification", "ClassificationWithTeacher")):
        labels = json.get("id2label")
        classes = len(labels) if isinstance(labels, dict) else 2
        classes = json.get("num_labels", classes)
    elif name.endswith("WithProjection") or name == "CLIPModel":
        classes = json.get("projection_dim", 512)
    # The gate of DINOv2 is always SiLU.
    gate = {"hidden_act": "silu"} if tower.get("use_swiglu_ffn") else {}
    return {
        **MODEL_TYPES[kind].defaults,
        **tower,
        **gate,
        "model_type": kind,
        "architectures": [name],
        "stated_classes": classes,
    }


def read_settings(json: dict) -> dict:
    """Return the fields of ViTConfig that a class of transformers implies.

    `json` is what `describe_tower` returned.

    Raises:
        ValueError: If no VisionTransformer computes what it states.
    """
    if "model_type" not in json:
        return {}
    row, [architecture] = MODEL_TYPES[json["model_type"]], json["architectures"]
    visible, size = row.visible_fields(json), json.get("image_size")
    is_rectangle = isinstance(size, list) and len(set(size)) > 1
    if is_rectangle and visible["relative_positions"] == "table":
        raise ValueError(
            "its images are not square, and transformers reads its tables of "
            "relative positions with height and width exchanged"
        )
    is_native = "positions computed for each grid (is_native)"
    problems = {**row.problems(json), is_native: json.get("is_native")}
    if found := [text for text, holds in problems.items() if holds]:
        raise ValueError(
            f"its configuration has {', '.join(found)}, which no model of "
            "this package has"
        )
    is_classifier = architecture.endswith("ForImageClassification")
    found = {
        "architecture": architecture,
        "stated_classes": json["stated_classes"],
        "rotary_positions": "none",
        "norm_placement": "before",
        "pooling": "token" if row.has_class_token else "avg",
        **row.settings(json, is_classifier),
        **row.fields,
        "visible": visible,
    }
    if "num_hidden_layers" in json:
        found["depth"] = json["num_hidden_layers"]
    return found


def check_visible(config: ViTConfig, visible: dict):
    """Raise a ValueError if a file contradicts its config.json.

    `config` is what names and shapes show; see `ModelType.visible_fields`.
    """
    for field, value in visible.items():
        actual = getattr(config, field)
        # Only a new model needs the number of `layer_scale_init`.
        fits = actual is not None if value == SOME else actual == value
        if value != ANY and not fits:
            raise ValueError(
                f"its config.json is of a model with {field}={value!r}, but "
                f"its arrays are those of one with {field}={actual!r}"
            )
