"""ImagePreprocessor: photos of any size to the images of a model."""

import dataclasses

import keras
from keras import ops

from keras_vit.arguments import as_size
from keras_vit.preprocessing.description import (
    Preprocessing,
    area_weights,
    cut_size,
    preprocessing_of,
    resized_size,
)
from keras_vit.preprocessing.inputs import (
    is_tensor_of_tensorflow,
    preprocess_input,
)


@keras.saving.register_keras_serializable(package="keras_vit")
class ImagePreprocessor(keras.layers.Layer):
    """Resize, crop and normalise pixels for a model.

    Computes what `preprocess_input` makes of `read_image(path, model=model)`,
    except that resized pixels are not rounded to whole numbers.

    Shapes:
        images: (B, H, W, C), from 0 to 255, integers or floats.
        returns: (B, height, width, C), floats.

    Args:
        image_size: (height, width) of the model, in pixels.
        normalization: See `keras_vit.Preprocessing`.
        resize_mode: See there.
        interpolation: See there.
        crop_fraction: See there.

    Raises:
        ValueError: If a value is invalid, or the layer is called in a graph
            that does not know the size of its images, with "shortest".

    Example:
        >>> layer = ImagePreprocessor((32, 32), normalization="imagenet")
        >>> tuple(layer(np.ones((2, 90, 60, 3), "uint8")).shape)
        (2, 32, 32, 3)
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        normalization="vit",
        resize_mode: str = "squash",
        interpolation: str = "bilinear",
        crop_fraction: float = 1.0,
        **kwargs,
    ):
        # Pixels up to 255 have no place in a half type.
        super().__init__(autocast=False, **kwargs)
        # XLA of TensorFlow has no antialiased resizing.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self.image_size = as_size(image_size, "image_size")
        self.settings = Preprocessing(
            normalization, resize_mode, interpolation, crop_fraction
        )

    @classmethod
    def for_model(cls, model, **kwargs):
        """Return the layer with the preprocessing and the size of a model.

        Args:
            model: A VisionTransformer.
            **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

        Raises:
            ValueError: If `model` is not a VisionTransformer.
        """
        settings = _settings_of_pixels(preprocessing_of(model))
        return cls(model.config.image_size, **settings, **kwargs)

    def __call__(self, images, *args, **kwargs):
        """Return the images of the model.

        A tensor of `tf.data` stays one, on JAX and PyTorch as well.
        """
        is_foreign = keras.backend.backend() != "tensorflow" and (
            is_tensor_of_tensorflow(images)
        )
        if not is_foreign:
            return super().__call__(images, *args, **kwargs)
        import tensorflow as tf

        def resize(images, size):
            kind = self.settings.interpolation
            return tf.image.resize(images, size, kind, antialias=True)

        images = self._apply(images, resize, tf.clip_by_value)
        return tf.cast(images, self.compute_dtype)

    def call(self, images):
        def resize(images, size):
            if self.settings.interpolation == "area":
                return _average_areas(images, size)
            return ops.image.resize(
                images,
                size,
                interpolation=self.settings.interpolation,
                antialias=True,
                data_format="channels_last",
            )

        images = self._apply(ops.cast(images, "float32"), resize, ops.clip)
        return ops.cast(images, self.compute_dtype)

    def _apply(self, images, resize, clip):
        """Return the images after the steps, normalised."""
        for step in self.settings.steps(self.image_size):
            shape = tuple(images.shape[1:3])
            if step["kind"] != "resize":
                if not all(isinstance(side, int) for side in shape):
                    raise ValueError(
                        "`images` must have a known height and width with "
                        "`resize_mode='shortest'`; in a graph for images of "
                        "any size, use `tf.data` with one image at a time, or "
                        f"'squash'. Received: shape={shape}"
                    )
                height, width = cut_size(step, shape)
                top, left = (shape[0] - height) // 2, (shape[1] - width) // 2
                images = images[:, top : top + height, left : left + width]
            if "method" in step:
                images = resize(images, resized_size(step, images.shape[1:3]))
                images = clip(images, 0, 255)  # A cubic kernel overshoots.
        return preprocess_input(
            images, "channels_last", self.settings.normalization
        )

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.image_size, input_shape[-1])

    def get_config(self):
        size, settings = self.image_size, _settings_of_pixels(self.settings)
        return {**super().get_config(), "image_size": size, **settings}


def _average_areas(images, size):
    _, height, width, _ = ops.shape(images)
    rows = area_weights(height, size[0], ops)
    columns = area_weights(width, size[1], ops)
    images = ops.einsum("yh,bhwc->bywc", rows, images)
    return ops.einsum("xw,bywc->byxc", columns, images)


def _settings_of_pixels(settings):
    """Return the fields by name, but for the one about files."""
    fields = dataclasses.asdict(settings)
    del fields["pixel_range"]
    return fields
