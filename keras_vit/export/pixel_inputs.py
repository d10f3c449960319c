"""TFLite files that take images as phones have them: uint8 pixels.

The antialiased resizing of most preprocessing is not a built-in operation of
TFLite, but its last halving is: a convolution with fixed weights. So the file
takes twice the height and width of the model, where phones resize a photo
with little loss even without antialiasing.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_vit.export.serving_options import normalize_images
from keras_vit.export.tflite_sizes import refuse_other_sizes
from keras_vit.preprocessing.normalization import Mode, to_uint8

# The weights with which the methods of `image_steps.resize_step` halve a side.
HALVINGS = {
    "antialias": (1, 3, 3, 1),
    "area": (1, 1),
    # Keys' kernel at 1.75, 1.25, 0.75 and 0.25 pixels from the middle, in
    # parts of 128.
    "bicubic": (-3, -9, 29, 111, 111, 29, -9, -3),
}


@dataclasses.dataclass(frozen=True)
class PixelInput:
    """An input of uint8 pixels from 0 to 255, instead of floats.

    Args:
        normalization: How the images of the model are normalised, see
            `preprocess_input`.
        method: The method that halves the image, a key of HALVINGS. None if
            the image has the size of the model.
    """

    normalization: Mode = "vit"
    method: str | None = None

    @property
    def pixels_per_side(self) -> int:
        """The number of pixels for each side of a pixel of the model."""
        return 1 if self.method is None else 2

    def shape_of(self, model: keras.Model) -> tuple[int, int, int]:
        """Return the shape (H, W, C) of the images for `model`."""
        height, width, channels = model.input_shape[1:]
        factor = self.pixels_per_side
        return height * factor, width * factor, channels

    def round(self, images: np.ndarray) -> np.ndarray:
        """Return images for this input, uint8.

        Shapes:
            images: (B, H, W, C), floats, normalised for the model.
            returns: (B, 2 H, 2 W, C), or (B, H, W, C) without a method.
        """
        pixels = to_uint8(images, self.normalization)
        for axis in (1, 2):
            pixels = np.repeat(pixels, self.pixels_per_side, axis)
        return pixels

    def expected_images(self, pixels: np.ndarray) -> np.ndarray:
        """Return the input of the model for pixels, resized by TensorFlow.

        Shapes:
            pixels: See the result of `round`.
            returns: (B, H, W, C), floats in the range of the model.
        """
        import tensorflow as tf

        from keras_vit.image_resizing import resize_image

        images = tf.constant(pixels, tf.float32)
        if self.method is not None:
            size = [side // 2 for side in pixels.shape[1:3]]
            images = resize_image(images, size, self.method)
        return normalize_images(images, self.normalization).numpy()

    def prepare(self, pixels):
        """Return the input of the model, with operations of TFLite.

        Shapes:
            pixels: See the result of `round`; another size is an error.
            returns: (B, H, W, C), float32.
        """
        import tensorflow as tf

        images = refuse_other_sizes(tf.cast(pixels, tf.float32))
        if self.method is not None:
            images = halve(images, HALVINGS[self.method])
            images = tf.clip_by_value(images, 0.0, 255.0)  # If it overshoots.
        return normalize_images(images, self.normalization)


def halve(images, weights: Sequence[float]):
    """Halve the sides of images.

    Shapes:
        images: (B, 2 H, 2 W, C), float32. returns: (B, H, W, C).

    Args:
        images: Images to resize.
        weights: The weights of the pixels around the middle of a new pixel.
    """
    import tensorflow as tf

    _, height, width, channels = images.shape
    border = len(weights) // 2 - 1
    kernel = np.outer(weights, weights).astype("float32")
    kernel = kernel[:, :, None, None].repeat(channels, 2)
    images = tf.pad(
        images, ((0, 0), (border, border), (border, border), (0, 0))
    )
    images = tf.nn.depthwise_conv2d(images, kernel, (1, 2, 2, 1), "VALID")
    rows, columns = (sum_inside(weights, side) for side in (height, width))
    return images / np.outer(rows, columns).astype("float32")[:, :, None]


def sum_inside(weights: Sequence[float], side: int) -> np.ndarray:
    """Return the sum of the weights of each new pixel, without a border.

    Beyond the edge there are no pixels, so the others have more weight.

    Args:
        weights: See `halve`.
        side: Number of pixels before the halving.
    """
    is_inside = np.pad(np.ones(side), len(weights) // 2 - 1)
    windows = np.lib.stride_tricks.sliding_window_view(is_inside, len(weights))
    return windows[::2] @ np.asarray(weights)


def find_pixel_input(
    steps: Sequence[Mapping] | None, normalization: Mode
) -> PixelInput:
    """Return the input that fits a preprocessing.

    A file that halves the image is exact only if the last resizing is
    antialiased, and the only one.

    Args:
        steps: See `keras_vit.export.image_steps`; None if they are not known.
        normalization: How the images of the model are normalised.
    """
    methods = [
        step.get("method", "area")
        for step in steps or ()
        if step["kind"] != "central_crop"
    ]
    is_halved = len(methods) == 1 and methods[0] in HALVINGS
    return PixelInput(normalization, methods[0] if is_halved else None)
