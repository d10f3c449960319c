"""Pre- and post-processing on the server."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import keras

from keras_vit.export.forward import name_output
from keras_vit.export.image_steps import ImageStep, steps_of
from keras_vit.models import VisionTransformer
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS
from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.normalization import Mode
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.tables import pick


@dataclasses.dataclass(frozen=True)
class Serving:
    """Pre- and post-processing on the server.

    Args:
        class_names: Names of the classes, in the order of the outputs.
            Default: their numbers.
        top: Largest number of classes in a prediction.
        activation: The function that turns logits into probabilities, a key of
            CLASSIFIER_ACTIVATIONS.
        preprocessing: How images are resized, cropped and normalised.
            Default: as `config.preprocessing` of a VisionTransformer says; for
            another model, as in `Preprocessing()`.
        read_image: Maps the content of an image file, a scalar string tensor,
            to the input of the model, (H, W, C) floats. Default: the image is
            turned upright, and then as `preprocessing` says.
        image_steps: What `read_image` does, as data for other runtimes; see
            `keras_vit.export.image_steps`.
        use_attention: Whether to add the signatures `attention` and
            `attention_bytes`.
        output: The kind of output of the model; see `name_output`. Default:
            inferred from the last layers.
    """

    class_names: Sequence[str] | None = None
    top: int = 5
    activation: str = "softmax"
    preprocessing: Preprocessing | None = None
    read_image: Callable | None = None
    image_steps: Sequence[Mapping] | None = None
    use_attention: bool = False
    output: str | None = None

    @property
    def settings(self) -> Preprocessing:
        """The preprocessing, or its default."""
        return self.preprocessing or Preprocessing()

    def for_model(self, model: keras.Model) -> "Serving":
        """Return these options with the preprocessing of a model, if missing.

        Args:
            model: The model.
        """
        if self.preprocessing is not None:
            return self
        if not isinstance(model, VisionTransformer):
            return self
        found = model.config.preprocessing
        return dataclasses.replace(self, preprocessing=found)


def find_steps(
    serving: Serving, image_size: Sequence[int]
) -> list[ImageStep] | None:
    """Return the steps of the preprocessing; None if they are not known.

    Args:
        serving: Pre- and post-processing of the model, complete.
        image_size: (height, width) of the model.
    """
    if serving.read_image is None:
        return steps_of(serving.settings, image_size)
    return None if serving.image_steps is None else [*serving.image_steps]


def check_serving(model: keras.Model, serving: Serving):
    """Raise a ValueError unless `model` can be served with these options."""
    pick(CLASSIFIER_ACTIVATIONS, serving.activation, "activation")
    num_classes = model.output_shape[-1]
    names = serving.class_names
    is_classifier = name_output(model, serving.output) != "features"
    if is_classifier and len(model.output_shape) != 2:
        raise ValueError(
            "`output` must be 'features' or None for a model whose outputs "
            "are not (B, classes), such as those of each pixel. Received: "
            f"output={serving.output!r}, outputs {model.output_shape}"
        )
    if names is not None and not is_classifier:
        raise ValueError(
            "`class_names` are for a model with a classifier; if its last "
            "layer is one, pass `output`. Received: "
            f"{len(names)} names for model={model.name!r}, which returns "
            "features"
        )
    if names is not None and len(names) != num_classes:
        raise ValueError(
            "`class_names` must have a name for each class. Received: "
            f"{len(names)} names for {num_classes} classes"
        )
    if serving.top < 1:
        raise ValueError(
            f"`top` must be 1 or more. Received: top={serving.top}"
        )
    channels, settings = model.input_shape[-1], serving.settings
    if len(settings.mean) not in (1, channels):
        raise ValueError(
            "`preprocessing` must have a mean for each channel, or one for "
            f"all. Received: {len(settings.mean)} for {channels} channels"
        )
    if serving.use_attention and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`use_attention` needs a VisionTransformer. Received: "
            f"{type(model).__name__} {model.name!r}"
        )


def normalize_images(pixels, mode: Mode):
    """Return pixels of TensorFlow from 0 to 255 as a model reads them.

    Shapes:
        pixels: (..., C). returns: the same, float32.

    Args:
        pixels: The pixels.
        mode: See `preprocess_input`.
    """
    import tensorflow as tf

    pixels = tf.cast(pixels, tf.float32)
    return preprocess_input(pixels, "channels_last", mode)


def decode_inputs(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Decode image files to inputs of the model.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.image_decoding import decode_image, turn_upright
    from keras_vit.image_resizing import apply_steps

    def read_whole_image(encoded):
        image = decode_image(encoded, image_shape[-1])
        image = turn_upright(image, encoded)
        image = apply_steps(image, find_steps(serving, image_shape[:2]))
        return normalize_images(image, serving.settings.normalization)

    read_image = serving.read_image or read_whole_image
    return tf.map_fn(
        # AutoGraph would search the function for control flow, for each file.
        tf.autograph.experimental.do_not_convert(read_image),
        image_bytes,
        fn_output_signature=tf.TensorSpec(image_shape, tf.float32),
    )


def name_classes(outputs: dict, serving: Serving) -> dict:
    """Return the top classes of logits or probabilities, or the features.

    Shapes:
        outputs: one of (B, C). returns: labels (B, k), strings, and
            probabilities (B, k), float32, highest first.
    """
    import tensorflow as tf

    ((name, scores),) = outputs.items()
    if name == "features":
        return outputs
    if name == "logits":
        scores = CLASSIFIER_ACTIVATIONS[serving.activation](scores)
    num_classes = scores.shape[-1]
    names = serving.class_names or map(str, range(num_classes))
    top = tf.math.top_k(scores, min(serving.top, num_classes))
    labels = tf.gather(tf.constant(list(names)), top.indices)
    return {"labels": labels, "probabilities": top.values}
