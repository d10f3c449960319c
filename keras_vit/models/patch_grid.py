"""PatchGrid: patch tokens, arranged as in images of any size."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchGrid(keras.layers.Layer):
    """Arrange patch tokens as in the images that they come from.

    It is a layer, because the size of symbolic images is not known before
    the graph runs.

    Shapes:
        tokens: (B, h * w, D).
        images: (B, H, W, C).
        returns: (B, h, w, D).

    Args:
        stride: Pixels from one patch to the next.
        stem_stride: Pixels from one cell of the feature map to the next, in a
            model with a stem; its padding rounds the number of cells up.

    Example:
        >>> grid = models.patch_grid.PatchGrid(8)
        >>> tuple(grid(np.ones((2, 6, 5)), np.ones((2, 16, 24, 3))).shape)
        (2, 2, 3, 5)
    """

    def __init__(self, stride: int, stem_stride: int = 1, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.stride = stride
        self.stem_stride = stem_stride

    def build(self, tokens_shape, images_shape):
        self.built = True

    def call(self, tokens, images):
        grid = map(self._count, ops.shape(images)[1:3])
        return ops.reshape(tokens, (-1, *grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        sides = images_shape[1:3]
        grid = (None if s is None else self._count(s) for s in sides)
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def _count(self, side):
        """Return the number of patches along a side of so many pixels."""
        cells = -(-side // self.stem_stride)
        return cells // (self.stride // self.stem_stride)

    def get_config(self):
        options = {"stride": self.stride, "stem_stride": self.stem_stride}
        return {**super().get_config(), **options}
