"""BASELINES: the ResNets that a recipe can train in place of a ViT."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class BitSize:
    """The size of a BiT ResNet.

    Args:
        units: Number of residual units in each stage. Each stage but the first
            halves the feature map.
        width_factor: Factor of all widths. With 1, the first convolution has
            64 outputs.
        use_small_root: Whether to begin with a 3x3 convolution that keeps the
            resolution, for small images. Otherwise, a 7x7 convolution and a
            max-pooling divide it by four.
    """

    units: tuple[int, ...]
    width_factor: float = 1
    use_small_root: bool = False


# Models of keras.applications.
APPLICATIONS = ("ResNet50", "ResNet50V2")

_R50, _R101 = (3, 4, 6, 3), (3, 4, 23, 3)
_R152, _R200 = (3, 8, 36, 3), (3, 24, 36, 3)
# R and three times the number of units, plus two; x and the width factor. The
# sizes are those of big_transfer; R50x2, R152x1 and R200x3 are in the ViT
# paper only (table 6). The small ones are of this project: a root for small
# images as for CIFAR-10 in He et al. 2016, arXiv:1512.03385, section 4.2.
BIT_SIZES = {
    "R50x1": BitSize(_R50),
    "R50x2": BitSize(_R50, 2),
    "R50x3": BitSize(_R50, 3),
    "R101x1": BitSize(_R101),
    "R101x3": BitSize(_R101, 3),
    "R152x1": BitSize(_R152),
    "R152x2": BitSize(_R152, 2),
    "R152x4": BitSize(_R152, 4),
    "R200x3": BitSize(_R200, 3),
    "R14x0.25-small": BitSize((1, 1, 1, 1), 0.25, use_small_root=True),
    "R26x0.25-small": BitSize((2, 2, 2, 2), 0.25, use_small_root=True),
}
BASELINES = (*APPLICATIONS, *BIT_SIZES)
