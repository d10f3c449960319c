"""The names of the layers of a block in the classes of transformers.

Each constant changes the names of the family `huggingface`, or those of
`huggingface_clip`.
"""

# The names of the layers of a block in DINOv2 and later models.
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
