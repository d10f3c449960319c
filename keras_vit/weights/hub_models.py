"""HUB_MODELS: well-known Vision Transformers on Hugging Face's hub."""

from typing import NamedTuple


class HubModel(NamedTuple):
    """A model on the hub.

    Args:
        repository: "owner/name".
        image_size: Side of its images, in pixels.
        licence: Its licence, as the repository names it.
    """

    repository: str
    image_size: int
    licence: str


def _timm(name, image_size, licence="apache-2.0"):
    return HubModel(f"timm/{name}", image_size, licence)


# Name -> model. Source of addresses, sizes and licences: timm 1.0.31.
HUB_MODELS = {
    "S/14-dinov2": _timm("vit_small_patch14_dinov2.lvd142m", 518),
    "B/14-dinov2": _timm("vit_base_patch14_dinov2.lvd142m", 518),
    "L/14-dinov2": _timm("vit_large_patch14_dinov2.lvd142m", 518),
    "g/14-dinov2": _timm("vit_giant_patch14_dinov2.lvd142m", 518),
    "B/14-dinov2-reg4": _timm("vit_base_patch14_reg4_dinov2.lvd142m", 518),
    "S/16-dinov3": _timm(
        "vit_small_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "B/16-dinov3": _timm(
        "vit_base_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "L/16-dinov3": _timm(
        "vit_large_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "B/32-clip-openai": _timm("vit_base_patch32_clip_224.openai", 224),
    "B/16-clip-openai": _timm("vit_base_patch16_clip_224.openai", 224),
    "L/14-clip-openai": _timm("vit_large_patch14_clip_224.openai", 224),
    "B/16-clip-laion2b": _timm("vit_base_patch16_clip_224.laion2b", 224),
    "L/14-clip-laion2b": _timm("vit_large_patch14_clip_224.laion2b", 224),
    "H/14-clip-laion2b": _timm("vit_huge_patch14_clip_224.laion2b", 224),
    "B/16-siglip": _timm("vit_base_patch16_siglip_224.webli", 224),
    "So400m/14-siglip": _timm("vit_so400m_patch14_siglip_384.webli", 384),
    "B/16-siglip2": _timm("vit_base_patch16_siglip_224.v2_webli", 224),
    "So400m/16-siglip2": _timm("vit_so400m_patch16_siglip_384.v2_webli", 384),
    "B/14-eva02": _timm(
        "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", 448, "mit"
    ),
    "L/14-eva02": _timm(
        "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", 448, "mit"
    ),
    "B/16-beit": _timm("beit_base_patch16_224.in22k_ft_in22k_in1k", 224),
    "B/16-beit2": _timm("beitv2_base_patch16_224.in1k_ft_in22k_in1k", 224),
    "B/16-deit3": _timm("deit3_base_patch16_224.fb_in22k_ft_in1k", 224),
    "L/16-deit3": _timm("deit3_large_patch16_384.fb_in22k_ft_in1k", 384),
    "B/16-deit-distilled": _timm(
        "deit_base_distilled_patch16_224.fb_in1k", 224
    ),
    "B/16-mae": _timm("vit_base_patch16_224.mae", 224, "cc-by-nc-4.0"),
    "L/16-mae": _timm("vit_large_patch16_224.mae", 224, "cc-by-nc-4.0"),
    "L/14-aimv2": _timm("aimv2_large_patch14_224.apple_pt", 224, "apple-ascl"),
    "B/16-pe-core": _timm("vit_pe_core_base_patch16_224.fb", 224),
    "L/14-pe-core": _timm("vit_pe_core_large_patch14_336.fb", 336),
}
