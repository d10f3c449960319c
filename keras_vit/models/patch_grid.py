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

    Example:
        >>> grid = models.patch_grid.PatchGrid(8)
        >>> tuple(grid(np.ones((2, 6, 5)), np.ones((2, 16, 24, 3))).shape)
        (2, 2, 3, 5)
    """

    def __init__(self, stride: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.stride = stride

    def build(self, tokens_shape, images_shape):
        self.built = True

    def call(self, tokens, images):
        height, width = ops.shape(images)[1:3]
        grid = (height // self.stride, width // self.stride)
        return ops.reshape(tokens, (-1, *grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        sides = images_shape[1:3]
        grid = (None if s is None else s // self.stride for s in sides)
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def get_config(self):
        return {**super().get_config(), "stride": self.stride}
