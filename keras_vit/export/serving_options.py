"""Pre- and post-processing on the server."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_vit.export.forward import name_output
from keras_vit.models import VisionTransformer
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS
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
        value_range: The range to which pixels of 0 to 255 are scaled.
        read_image: Maps the content of an image file, a scalar string tensor,
            to the input of the model, (H, W, C) floats. Default: the image is
            turned upright and resized with antialiasing, without cropping.
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
    value_range: tuple[float, float] = (-1.0, 1.0)
    read_image: Callable | None = None
    image_steps: Sequence[Mapping] | None = None
    use_attention: bool = False
    output: str | None = None


def check_serving(model: keras.Model, serving: Serving):
    """Raise a ValueError unless `model` can be served with these options."""
    pick(CLASSIFIER_ACTIVATIONS, serving.activation, "activation")
    num_classes = model.output_shape[-1]
    names = serving.class_names
    is_classifier = name_output(model, serving.output) != "features"
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
    low, high = serving.value_range
    if not low < high:
        raise ValueError(
            "`value_range` must be (low, high) with low < high. "
            f"Received: value_range={serving.value_range}"
        )
    if serving.use_attention and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`use_attention` needs a VisionTransformer. Received: "
            f"{type(model).__name__} {model.name!r}"
        )


def to_range(pixels, value_range: tuple[float, float]):
    """Scale pixels from 0..255 to a range, as float32."""
    import tensorflow as tf

    low, high = value_range
    return tf.cast(pixels, tf.float32) / (255.0 / (high - low)) + low


def to_uint8(images, value_range: tuple[float, float]) -> np.ndarray:
    """Scale numbers from a range to the nearest uint8 pixels."""
    low, high = value_range
    pixels = (np.asarray(images, "float32") - low) * (255 / (high - low))
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")


def decode_inputs(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Decode image files to inputs of the model.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.image_decoding import decode_image, turn_upright

    def read_whole_image(encoded):
        image = decode_image(encoded, image_shape[-1])
        image = turn_upright(image, encoded)
        # Antialiasing, because photos are usually much larger than the input.
        image = tf.image.resize(image, image_shape[:2], antialias=True)
        return to_range(image, serving.value_range)

    return tf.map_fn(
        serving.read_image or read_whole_image,
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
