"""What a server can be asked: the signatures of a SavedModel."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_grid
from keras_vit.export.forward import make_forward, name_output
from keras_vit.models import VisionTransformer
from keras_vit.tables import pick

IMAGE_FILE_CHANNELS = (1, 3, 4)  # That PNG and JPEG files can have.


@dataclasses.dataclass(frozen=True)
class Serving:
    """How a server reads images, and what it says about them.

    Args:
        class_names: In the order of the outputs. Default: their numbers.
        top: How many classes are named, at most.
        activation: What makes probabilities of logits, a key of ACTIVATIONS.
        value_range: What the model takes for pixels of 0 and 255.
        read_image: Makes of the content of an image file, a scalar string
            tensor, the (H, W, C) floats that the model takes. Default: the
            whole image, upright, resized with antialiasing.
        use_attention: Whether there is a signature `attention`.
        output: What the model answers with, see `name_output`. Default: what
            its last layers say.
    """

    class_names: Sequence[str] | None = None
    top: int = 5
    activation: str = "softmax"
    value_range: tuple[float, float] = (-1.0, 1.0)
    read_image: Callable | None = None
    use_attention: bool = False
    output: str | None = None


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function that a server can call.

    Args:
        call: Takes the one input, returns a dict of outputs.
        input_name: What clients call the input.
        shape: Of the input; None where it is open.
        dtype: Of the input: float32, uint8 or string.
    """

    call: Callable
    input_name: str
    shape: tuple[int | None, ...]
    dtype: str


def make_signatures(
    model: keras.Model, serving: Serving
) -> dict[str, Signature]:
    """Return what a server of `model` can be asked, by name.

    All but `attention` call one graph of the model, so that it is stored and
    loaded once; what a signature does not ask for is not computed.

    Args:
        model: A model of fixed image size.
        serving: How images are read and answers are given.

    Raises:
        ValueError: If the names do not fit the classes, or there is no
            attention to show.
    """
    check_serving(model, serving)
    image_shape = model.input_shape[1:]
    name = name_output(model, serving.output)
    answer = make_answer(model, serving.output)

    def serve(images):
        return {name: answer(images)[name]}

    def serve_uint8(images):
        return serve(to_range(images, serving.value_range))

    def serve_bytes(image_bytes):
        answers = serve(read_images(image_bytes, image_shape, serving))
        return name_classes(answers, serving)

    def features(images):
        return {"features": answer(images)["features"]}

    def attention(images):
        return {"rollout": attention_grid(model, images)}

    shape = (None, *image_shape)
    floats = {"input_name": "images", "shape": shape, "dtype": "float32"}
    pixels = floats | {"dtype": "uint8"}
    files = {"input_name": "image_bytes", "shape": (None,), "dtype": "string"}
    signatures = {
        "serving_default": Signature(serve, **floats),
        "serve_uint8": Signature(serve_uint8, **pixels),
    }
    if image_shape[-1] in IMAGE_FILE_CHANNELS:
        signatures["serve_bytes"] = Signature(serve_bytes, **files)
    signatures["features"] = Signature(features, **floats)
    if serving.use_attention:
        signatures["attention"] = Signature(attention, **floats)
    return signatures


def check_serving(model: keras.Model, serving: Serving):
    """Raise a ValueError unless `model` can be served as it is asked."""
    pick(ACTIVATIONS, serving.activation, "activation")
    num_classes = model.output_shape[-1]
    names = serving.class_names
    is_classifier = name_output(model, serving.output) != "features"
    if names is not None and not is_classifier:
        raise ValueError(
            "`class_names` are for a model with a classifier; if its last "
            "layer is one, say so by `output`. Received: "
            f"{len(names)} names for model={model.name!r}, which answers with "
            "features"
        )
    if names is not None and len(names) != num_classes:
        raise ValueError(
            "`class_names` must hold a name for each class. Received: "
            f"{len(names)} names for {num_classes} classes"
        )
    if serving.top < 1:
        raise ValueError(
            f"`top` must be 1 or more. Received: top={serving.top}"
        )
    low, high = serving.value_range
    if not low < high:
        raise ValueError(
            "`value_range` must be two rising numbers. "
            f"Received: value_range={serving.value_range}"
        )
    if serving.use_attention and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`use_attention` is for a VisionTransformer. Received: "
            f"{type(model).__name__} {model.name!r}"
        )


def make_answer(model: keras.Model, output: str | None) -> Callable:
    """Return the graph of `model` and of what goes into its head.

    Shapes:
        The function takes float32 images (B, H, W, C) and returns a dict:
        what `name_output` says, and "features" (B, D), float32.
    """
    import tensorflow as tf

    forward = make_forward(model, output)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32)

    @tf.function(input_signature=[spec], autograph=False)
    def answer(images):
        answers = forward(images)
        return {name: tf.cast(x, tf.float32) for name, x in answers.items()}

    return answer


def to_range(pixels, value_range: tuple[float, float]):
    """Return pixels from 0 to 255 as float32 numbers of a range."""
    import tensorflow as tf

    low, high = value_range
    return tf.cast(pixels, tf.float32) / (255.0 / (high - low)) + low


def to_pixels(images, value_range: tuple[float, float]) -> np.ndarray:
    """Return the pixels, uint8, next to numbers of a range."""
    low, high = value_range
    pixels = (np.asarray(images, "float32") - low) * (255 / (high - low))
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")


def read_images(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Return the images in files, as the model takes them.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.image_decoding import decode_photo, turn_upright

    def read_whole_image(encoded):
        image = decode_photo(encoded, image_shape[-1])
        image = turn_upright(image, encoded)
        # Photos are larger than the model's images, often by far.
        image = tf.image.resize(image, image_shape[:2], antialias=True)
        return to_range(image, serving.value_range)

    return tf.map_fn(
        serving.read_image or read_whole_image,
        image_bytes,
        fn_output_signature=tf.TensorSpec(image_shape, tf.float32),
    )


def name_classes(answers: dict, serving: Serving) -> dict:
    """Return the likeliest classes of answers; features stay as they are.

    Shapes:
        answers: one of (B, C). returns: labels (B, k), strings, and
            probabilities (B, k), float32, falling.
    """
    import tensorflow as tf

    ((name, scores),) = answers.items()
    if name == "features":
        return answers
    if name == "logits":
        scores = ACTIVATIONS[serving.activation](scores)
    num_classes = scores.shape[-1]
    names = serving.class_names or map(str, range(num_classes))
    top = tf.math.top_k(scores, min(serving.top, num_classes))
    labels = tf.gather(tf.constant(list(names)), top.indices)
    return {"labels": labels, "probabilities": top.values}


ACTIVATIONS = {
    "softmax": keras.ops.softmax,
    "sigmoid": keras.ops.sigmoid,
}
