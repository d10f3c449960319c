"""MODELS: small ViTs, ResNets and hybrids, for the moved digits."""

import functools

import keras

from benchmarks.study_images import STUDY_SIDE
from keras_vit import VisionTransformer, ViTConfig
from trainers.data.datasets import ImageDataset
from trainers.models.bit_resnet import build_bit_resnet
from trainers.recipes.baselines import BitSize
from trainers.recipes.schema import Recipe

HEAD_SIZE = 16


def build_vit(
    recipe: Recipe, dataset: ImageDataset, *, depth: int, width: int, **more
) -> VisionTransformer:
    """Return a new ViT of 4x4 patches, or a hybrid with as many tokens.

    Args:
        recipe: Not used, see `prepare`.
        dataset: The images and classes.
        depth: Number of blocks.
        width: Size of a token.
        **more: More fields of ViTConfig.
    """
    config = ViTConfig(
        **{"patch_size": 4, **more},
        depth=depth,
        width=width,
        mlp_dim=4 * width,
        num_heads=width // HEAD_SIZE,
        image_size=STUDY_SIDE,
        channels=dataset.channels,
        num_classes=len(dataset.class_names),
    )
    return VisionTransformer(config)


def build_resnet(
    recipe: Recipe, dataset: ImageDataset, *, width: int
) -> keras.Model:
    """Return a new BiT ResNet with three stages of one unit.

    Args:
        recipe: Not used, see `prepare`.
        dataset: The images and classes.
        width: Outputs of the first convolution.
    """
    return build_bit_resnet(
        BitSize((1, 1, 1), width / 64, use_small_root=True),
        image_size=STUDY_SIDE,
        channels=dataset.channels,
        num_classes=len(dataset.class_names),
    )


# Family -> size -> a function of the recipe and the data set. Models of one
# size need about the same arithmetic. A hybrid begins with the 7x7 convolution
# and the pooling of a ResNet, whose cells are its tokens.
_HYBRID = functools.partial(build_vit, stem_stages=(), patch_size=1)
STUDY_MODELS = {
    "ViT": {
        "small": functools.partial(build_vit, depth=2, width=32),
        "medium": functools.partial(build_vit, depth=3, width=48),
        "large": functools.partial(build_vit, depth=4, width=64),
    },
    "ResNet": {
        "small": functools.partial(build_resnet, width=4),
        "medium": functools.partial(build_resnet, width=8),
        "large": functools.partial(build_resnet, width=12),
    },
    "hybrid": {
        "small": functools.partial(_HYBRID, depth=1, width=32),
        "medium": functools.partial(_HYBRID, depth=2, width=48),
        "large": functools.partial(_HYBRID, depth=3, width=64),
    },
}
