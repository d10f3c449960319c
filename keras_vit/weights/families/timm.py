"""timm: huggingface/pytorch-image-models."""

import re

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface.model_types import IN_TIMM_NAMES
from keras_vit.weights.huggingface.tower_settings import describe_tower
from keras_vit.weights.layer_shapes import BLOCK, RELATIVE, ROTARY, UNIT
from keras_vit.weights.layouts import (
    TORCH_WRAPPERS,
    Dialect,
    Layout,
    NameVariant,
)
from keras_vit.weights.styles import (
    FLAT_CONV,
    LATER_TORCH,
    RADIO,
    SAME,
    TORCH,
)
from keras_vit.weights.timm.class_arguments import (
    ACT_LAYERS,
    has_split_gate,
    has_split_projections,
    is_eva,
)
from keras_vit.weights.timm.completing import (
    complete,
    describe_trunk,
    find_undetermined,
    guess_heads,
    read_hints,
)
from keras_vit.weights.timm.config_json import (
    TIMM_VALUES,
    epsilon_of,
    find_base,
    make_json,
)
from keras_vit.weights.timm.original_names import (
    name_as_timm,
    resize_of,
    settle_constants,
)
from keras_vit.weights.timm.refusals import explain_refusal
from keras_vit.weights.writers import (
    folder_writer,
    npz_writer,
    write_safetensors_file,
)

# The biases of separate queries and values.
SPLIT_BIAS = {
    "query_bias": (".q_proj.bias", SAME),
    "value_bias": (".v_proj.bias", SAME),
}
# A stem without stages is not nested.
FLAT_ROOT = Dialect(((r"\.backbone\.stem\.", ".backbone."),))
WRAPPED = "|".join(map(re.escape, TORCH_WRAPPERS))
STAGES = "patch_embed.backbone.stages.{s}.blocks.{u}."


def make_jsons(config: ViTConfig) -> dict[str, dict]:
    """Return the JSON file beside the weights, by name.

    Args:
        config: Configuration of the model.

    Raises:
        ValueError: If the model is a hybrid.
    """
    return {"config.json": make_json(config)}


def _describe(json):
    """Return the JSON of a class of transformers or OpenCLIP as one of timm."""
    if json.get("model_type") in IN_TIMM_NAMES:
        return describe_tower(json)
    return describe_trunk(json)


def _computes(config):
    """Return the fields of ViTConfig that timm's function for a model fixes."""
    return {
        "layer_norm_epsilon": epsilon_of(config),
        "activation": "silu" if config.use_gated_mlp else "exact",
    }


LAYOUT = Layout(
    order=2,
    title="timm (huggingface/pytorch-image-models)",
    normalization=None,
    style={**TORCH, **LATER_TORCH},
    names={
        "patch_encoder": "patch_embed.proj",
        "patch_norm": "patch_embed.norm",
        "registers": "reg_token",
        "distillation_token": "dist_token",
        "class_token": "cls_token",
        "position_embedding": "pos_embed",
        "embedding_norm": "norm_pre",
        RELATIVE: "blocks.{i}.attn.relative_position_bias_table",
        RELATIVE + "/hidden": "blocks.{i}.attn.rel_pos.mlp.fc1",
        RELATIVE + "/out": "blocks.{i}.attn.rel_pos.mlp.fc2",
        "relative_positions/hidden": "shared_rel_pos.mlp.fc1",
        "relative_positions/out": "shared_rel_pos.mlp.fc2",
        ROTARY: "rope.freqs.{i}",
        BLOCK + "attention_norm": "blocks.{i}.norm1",
        BLOCK + "attention": "blocks.{i}.attn",
        BLOCK + "attention/query_norm": "blocks.{i}.attn.q_norm",
        BLOCK + "attention/key_norm": "blocks.{i}.attn.k_norm",
        BLOCK + "attention/inner_norm": "blocks.{i}.attn.norm",
        BLOCK + "attention_scale": "blocks.{i}.ls1",
        BLOCK + "mlp/inner_norm": "blocks.{i}.mlp.norm",
        BLOCK + "mlp_scale": "blocks.{i}.ls2",
        BLOCK + "attention/qkv": "blocks.{i}.attn.qkv",
        BLOCK + "attention/out": "blocks.{i}.attn.proj",
        BLOCK + "mlp_norm": "blocks.{i}.norm2",
        BLOCK + "mlp/hidden": "blocks.{i}.mlp.fc1",
        BLOCK + "mlp/out": "blocks.{i}.mlp.fc2",
        "encoder_norm": "norm",
        "pooling_norm": "fc_norm",
        "pooling": "attn_pool.latent",
        "pooling/query": "attn_pool.q",
        "pooling/key_value": "attn_pool.kv",
        "pooling/out": "attn_pool.proj",
        "pooling/norm": "attn_pool.norm",
        "pooling/mlp/hidden": "attn_pool.mlp.fc1",
        "pooling/mlp/out": "attn_pool.mlp.fc2",
        "predictions": "head",
        "predictions/class_head": "head",
        "predictions/teacher_head": "head_dist",
        "stem/root_conv": "patch_embed.backbone.stem.conv",
        "stem/root_norm": "patch_embed.backbone.stem.norm",
        UNIT + "conv1": STAGES + "conv1",
        UNIT + "conv2": STAGES + "conv2",
        UNIT + "conv3": STAGES + "conv3",
        UNIT + "norm1": STAGES + "norm1",
        UNIT + "norm2": STAGES + "norm2",
        UNIT + "norm3": STAGES + "norm3",
        UNIT + "shortcut_conv": STAGES + "downsample.conv",
        UNIT + "shortcut_norm": STAGES + "downsample.norm",
    },
    recognise=(
        "patch_embed.proj.weight",
        "embeds.proj.weight",
        "patch_embed.projection.weight",
        "patch_generator.embedder.weight",
    ),
    variants=(
        NameVariant(
            r"blocks\.0\.attn\.q_proj\.",
            names={
                BLOCK + "attention/qkv": (
                    "blocks.{i}.attn.q_proj",
                    "blocks.{i}.attn.k_proj",
                    "blocks.{i}.attn.v_proj",
                ),
            },
            style={"query_value_bias": SPLIT_BIAS},
            used_by=has_split_projections,
        ),
        NameVariant(
            r"blocks\.0\.gamma_1",
            names={
                BLOCK + "attention_scale": "blocks.{i}.gamma_1",
                BLOCK + "mlp_scale": "blocks.{i}.gamma_2",
            },
            style={"scale": {"scale": ("", SAME)}},
            used_by=lambda config: (
                is_eva(config) or config.relative_positions == "table"
            ),
        ),
        NameVariant(
            r"blocks\.0\.mlp\.fc1_g\.",
            names={
                BLOCK + "mlp/hidden": (
                    "blocks.{i}.mlp.fc1_g",
                    "blocks.{i}.mlp.fc1_x",
                ),
            },
            used_by=has_split_gate,
        ),
        NameVariant(
            r"embeds\.proj\.",
            names={"patch_encoder": "embeds.proj"},
            style=FLAT_CONV,
        ),
        NameVariant(
            r"patch_generator\.embedder\.",
            names={"patch_encoder": "patch_generator.embedder"},
            style=RADIO,
        ),
    ),
    has_architectures=True,
    has_later_parts=True,
    position_resize="bicubic_antialias",
    resize_of=resize_of,
    stem_epsilons="timm",
    wrappers=(
        *TORCH_WRAPPERS,
        "timm_model.",
        "visual.",
        "trunk.",
        "radio_model.",
        "vision_encoder.",
    ),
    # A stem without stages is not nested.
    aliases=(
        (r"^trunk_head\.proj\.", "head."),
        (
            r"^patch_embed\.backbone\.(conv|norm)\.",
            r"patch_embed.backbone.stem.\1.",
        ),
        # Sapiens 2.
        (r"^patch_embed\.projection\.", "patch_embed.proj."),
        (r"\.attn\.w([qkv])\.", r".attn.\1_proj."),
        (r"\.attn\.gamma\.weight$", ".gamma_1"),
        (r"\.ffn\.", ".mlp."),
        (r"\.ln([12])\.", r".norm\1."),
        (r"^ln1\.", "norm."),
        # RADIO.
        (r"^patch_generator\.pos_embed$", "pos_embed"),
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        # The DINOv2 code, whose blocks may be in groups, and TIPSv2.
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),
        (r"^(register_tokens|storage_tokens)$", "reg_token"),
        (r"\.mlp\.(c_fc|w12|weights_in)\.", ".mlp.fc1."),
        (r"\.mlp\.(c_proj|w3|weights_out)\.", ".mlp.fc2."),
        # The code of DINOv3 and EVA.
        (r"\.mlp\.w1\.", ".mlp.fc1_g."),
        (r"\.mlp\.w2\.", ".mlp.fc1_x."),
        (r"\.mlp\.ffn_ln\.", ".mlp.norm."),
        (r"\.attn\.inner_attn_ln\.", ".attn.norm."),
        (r"^embeds\.(cls_token|reg_token|pos_embed)$", r"\1"),
        (r"^embeds\.norm\.", "patch_embed.norm."),
    ),
    dialects={"root": FLAT_ROOT},
    dialect_of=lambda config: (
        FLAT_ROOT if config.stem_stages == () else Dialect()
    ),
    # The frequencies are constants, which the model computes by itself. In
    # OpenCLIP and TIPSv2, the text tower and its scale stand beside the images.
    # Files of training have the heads of DINO and EVA, and the decoder of MAE.
    ignore=r"text\.|text_encoder\.|(logit_scale|logit_bias|temperature)$|"
    rf"({WRAPPED})*((dino|ibot)_head|head\.mlp\.(\d|weight|bias)|"
    r"head\.last_layer)|"
    r"lm_head\.|decoder_(pos_embed$|(embed|blocks|norm|pred)\.)|"
    r"(.*\.)?relative_position_index$|"
    r"(mask_token|optimizer|epoch|local_cls_norm\..*|"
    r"(.*\.)?rope\.freqs_(cos|sin)|rope_embed\.periods)$|"
    r"(decode_head|scale_head|patch_generator\.video_embedder)\.|"
    r"radio_model\.(input_conditioner\.|summary_idxs$)",
    prepare=name_as_timm,
    optional_bias=("heads_in",),
    slots=((1, 0), (0,)),
    stacks={"rope.freqs": 1},
    describe=_describe,
    read_hints=read_hints,
    guess_heads=guess_heads,
    complete=complete,
    settle=settle_constants,
    conditioner=("norm_mean", "norm_std"),
    undetermined=find_undetermined,
    writers={
        ".safetensors": write_safetensors_file,
        ".npz": npz_writer(),
        "": folder_writer(make_jsons),
    },
    later_fields=lambda config: find_base(config).later_fields,
    later_values=TIMM_VALUES,
    computes=_computes,
    refuse=explain_refusal,
    stated_fields=("activation",),
    class_entries=lambda names: {"label_names": list(names)},
    remedies={
        "activation": lambda value: (
            f"Pass act_layer={ACT_LAYERS.get(value)!r} there."
        ),
    },
)
