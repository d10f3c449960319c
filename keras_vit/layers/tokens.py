"""From images to tokens: projected patches, and learned tokens before them."""

import math

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import Layer
from keras_vit.layers.resize import resize_patch_kernel


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(Layer):
    """Cut images into square patches and project each to a token.

    Computes the same as a convolution with kernel size and stride P and no
    padding. One matrix product over all patches is faster. If an image is not
    a whole number of patches, this layer raises an error, unless it is told to
    ignore the border, as a convolution does.

    Shapes:
        images: (B, H, W, C).
        returns: (B, N, D) with N = (H // P) * (W // P), row by row.

    Args:
        patch_size: Side P of a square patch, in pixels.
        width: Size D of a token.
        use_bias: Whether the projection has a bias.
        ignore_border: Whether pixels at the bottom and at the right that fill
            no patch are left out; otherwise P must divide H and W.

    Raises:
        ValueError: If the image is not a whole number of patches, or smaller
            than one.

    Example:
        >>> encoder = PatchEncoder(patch_size=8, width=24)
        >>> tuple(encoder(np.ones((2, 32, 16, 3))).shape)
        (2, 8, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 1.
    """

    def __init__(
        self,
        patch_size: int,
        width: int,
        use_bias: bool = True,
        ignore_border: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.patch_size = as_whole(patch_size, "patch_size")
        self.width = as_whole(width, "width")
        self.use_bias = use_bias
        self.ignore_border = ignore_border

    def build(self, input_shape):
        if len(input_shape) != 4 or input_shape[-1] is None:
            raise ValueError(
                "`images` must have the shape (B, H, W, C) with C known. "
                f"Received: shape={tuple(input_shape)}"
            )
        self.compute_output_shape(input_shape)  # Raises for a part of a patch.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*(self.patch_size,) * 2, input_shape[-1], self.width),
            initializer="lecun_normal",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.width,), initializer="zeros"
            )
        self.input_spec = keras.InputSpec(shape=(None, *input_shape[1:]))

    def call(self, images):
        # Open until now if any size is accepted.
        self.compute_output_shape(images.shape)
        images = kernels.ensure_shape(images, self.input_spec.shape)
        batch, height, width, channels = ops.shape(images)
        side, features = self.patch_size, self.patch_size**2 * channels
        h, w = height // side, width // side
        if self.ignore_border:
            images = images[:, : h * side, : w * side]
        # If the image size is unknown, the reshape gets the number of rows, so
        # it fails for an image that is not a whole number of patches, and a
        # graph of TensorFlow reports it under this name. No tensor has more
        # than four axes, which is all that GPUs of phones take.
        is_open = None in self.input_spec.shape[1:]
        rows = batch * h if is_open else -1
        with kernels.name_scope("images_must_be_a_whole_number_of_patches"):
            shape = (rows, side, w, side * channels)
            x = kernels.reshape(images, shape)
        x = ops.transpose(x, (0, 2, 1, 3))  # (B*h, w, P, P*C)
        x = kernels.reshape(x, (-1, features))  # (B*N, P*P*C)
        return kernels.reshape(self._project(x), (-1, h * w, self.width))

    def project(self, patches):
        """Return the tokens of patches that are cut already.

        Shapes:
            patches: (B, N, P * P * C), each row by row. returns: (B, N, D).
        """
        length, features = ops.shape(patches)[1:]
        patches = ops.cast(patches, self.compute_dtype)
        x = self._project(kernels.reshape(patches, (-1, features)))
        return kernels.reshape(x, (-1, length, self.width))

    def _project(self, x):
        """Return (M, D) for (M, P * P * C)."""
        kernel = ops.reshape(self.kernel, (x.shape[-1], self.width))
        x = ops.matmul(x, kernel)
        return ops.add(x, self.bias) if self.use_bias else x

    def resize_from(self, source: "PatchEncoder"):
        """Copy the weights of `source`, resized to the patches of this layer.

        See `resize_patch_kernel`; patches are resized bilinearly.
        """
        kernel = ops.convert_to_numpy(source.kernel)
        if source.patch_size != self.patch_size:
            kernel = resize_patch_kernel(kernel, self.patch_size, "bilinear")
        self.kernel.assign(kernel)
        if self.use_bias:
            self.bias.assign(source.bias)

    def compute_output_shape(self, input_shape):
        batch, height, width, _ = input_shape
        grid = []
        for size in (height, width):
            whole, rest = divmod(size or self.patch_size, self.patch_size)
            if not whole or (rest and not self.ignore_border):
                raise ValueError(
                    "`images` must be a whole number of patches in height and "
                    f"width. Received: image {height}x{width} pixels, "
                    f"patch_size={self.patch_size}"
                )
            grid.append(whole)
        is_known = None not in (height, width)
        return (batch, math.prod(grid) if is_known else None, self.width)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchGrid(Layer):
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
        >>> grid = layers.tokens.PatchGrid(8)
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
        return kernels.reshape(tokens, (-1, *grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        sides = images_shape[1:3]
        grid = (None if s is None else self._count(s) for s in sides)
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def _count(self, side):
        """Return the number of patches along a side of so many pixels."""
        cells = -(-side // self.stem_stride)
        return cells // (self.stride // self.stem_stride)


@keras.saving.register_keras_serializable(package="keras_vit")
class PrefixTokens(Layer):
    """Prepend learned tokens, which are the same for every image.

    They are registers, a distillation token, or a class token (`ClassToken`).

    Shapes:
        tokens: (B, T, D).
        returns: (B, R + T, D); the learned tokens come first.

    Args:
        num_tokens: Number R of tokens.

    Raises:
        ValueError: If `num_tokens` is not positive.

    Example:
        >>> tuple(PrefixTokens(num_tokens=4)(np.ones((2, 16, 24))).shape)
        (2, 20, 24)

    Reference: Darcet et al. 2024, arXiv:2309.16588, for registers; Touvron et
        al. 2021, arXiv:2012.12877, for the distillation token.
    """

    initializer = None  # Of new tokens; normal by default, so they differ.

    def __init__(self, num_tokens: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = as_whole(num_tokens, "num_tokens")

    def build(self, input_shape):
        width = input_shape[-1]
        self.token = self.add_weight(
            name="token",
            shape=(1, self.num_tokens, width),
            initializer=self.initializer
            or keras.initializers.TruncatedNormal(stddev=0.02),
        )
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})

    def call(self, tokens):
        # Two paddings and a sum are equivalent to a concatenation, but do not
        # repeat the token for each image. So the exported graph has no shape
        # op, and a TFLite delegate can run all of it.
        length = ops.shape(tokens)[1]
        token = kernels.pad(self.token, ((0, 0), (0, length), (0, 0)))
        tokens = kernels.pad(tokens, ((0, 0), (self.num_tokens, 0), (0, 0)))
        return tokens + token  # (B, R + T, D)

    def compute_mask(self, tokens, mask=None):
        if mask is None:
            return None
        padding = ((0, 0), (self.num_tokens, 0))
        return ops.pad(mask, padding, constant_values=True)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        if length is not None:
            length += self.num_tokens
        return (batch, length, width)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(PrefixTokens):
    """Prepend a learned token to the patch tokens.

    Shapes:
        tokens: (B, N, D).
        returns: (B, 1 + N, D); the class token has index 0.

    Example:
        >>> tuple(ClassToken()(np.ones((2, 16, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 1;
        zero-initialised as in the official code.
    """

    initializer = "zeros"
