"""What an export format is given, and what it must provide."""

import dataclasses
import functools
import importlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, Tolerance, expected_outputs
from keras_vit.export.image_steps import ImageStep, scale_steps, steps_of
from keras_vit.layers.dtypes import is_quantized
from keras_vit.models import FlexibleVisionTransformer, VisionTransformer
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    is_graph,
    name_output,
    split_at_head,
)
from keras_vit.packages import missing_packages
from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.normalization import Mode
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.tables import pick
from keras_vit.version import __version__


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


def make_forward(
    model: keras.Model, output: str | None = None, is_short: bool = True
) -> Callable:
    """Return a function that computes the outputs and features of `model`.

    A head on the class token reads only one token of the last block. So the
    last block computes only that token, from the keys and values of all
    tokens. This saves about 10 of the 12 D^2 multiplications for each token of
    that block, 7 % in a model with 12 blocks.

    Shapes:
        The function takes images (B, H, W, C) and returns a dict: the outputs
        under the name that `name_output` returns, and "features" (B, D), the
        input of the head, which is the last layer with weights.

    Args:
        model: A model with one input and one output. Its layers are shared.
        output: See `name_output`.
        is_short: Whether to skip the tokens that the head does not read.
    """
    name = name_output(model, output)
    compute = split_at_head(model, name != "features", is_short)

    def forward(images):
        features, outputs = compute(images)
        return {"features": features, name: outputs}

    return forward


KEY = "keras_vit"  # Of the description in ONNX and OpenVINO files.


def describe(
    model: keras.Model,
    serving: Serving,
    *,
    name: str | None = None,
    pixels_per_side: int | None = None,
) -> dict[str, Any]:
    """Describe an export of `model`, in values of JSON.

    `input` is the shape and the dtype of an image; `image_steps` lead from an
    upright image with pixels x from 0 to 255 to its size, see
    `keras_vit.export.image_steps`, and (x / 255 - `mean`) / `deviation` of each
    channel is the input. `output` is the kind of output,
    and `activation` is the function that turns it into probabilities.

    Args:
        model: A model with a fixed image size.
        serving: Pre- and post-processing of the model.
        name: The name of the model. Default: that of `model`.
        pixels_per_side: If the input is uint8, the number of its pixels for
            each side of a pixel of the model.

    Raises:
        ValueError: If `serving` does not fit the model.
    """
    serving = serving.for_model(model)
    check_serving(model, serving)
    height, width, channels = model.input_shape[1:]
    output = name_output(model, serving.output)
    steps = find_steps(serving, (height, width))
    mean, deviation = serving.settings.for_channels(channels)
    factor = pixels_per_side or 1
    return {
        "format": "keras_vit 1",
        "version": __version__,
        "name": name or model.name,
        "input": {
            "height": height * factor,
            "width": width * factor,
            "channels": channels,
            "dtype": "uint8" if pixels_per_side else "float32",
        },
        "image_steps": None if steps is None else scale_steps(steps, factor),
        "mean": None if pixels_per_side else mean,
        "deviation": None if pixels_per_side else deviation,
        "output": output,
        "activation": serving.activation if output == "logits" else None,
        "class_names": name_all_classes(model, serving, output),
    }


def name_all_classes(
    model: keras.Model, serving: Serving, output: str
) -> Sequence[str] | None:
    """Return the name of each class, or None if the outputs are features."""
    if output == "features":
        return None
    numbers = map(str, range(model.output_shape[-1]))
    return [*map(str, serving.class_names or numbers)]


def to_text(description: Mapping[str, Any]) -> str:
    """Return a description as JSON."""
    return json.dumps(description, ensure_ascii=False)


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, with equal weights.

    A model that already computes in float32 is returned unchanged.

    Raises:
        ValueError: If Keras quantized the model, or a layer cannot be rebuilt
            from its config.
    """
    if is_quantized(model):
        raise ValueError(
            "A model quantized by Keras cannot be converted; export the model "
            f"that it was quantized from. Received: model={model.name!r}"
        )
    if computes_in_float32(model):
        return model
    try:
        copy = rebuild(model)
        copy.set_weights(model.get_weights())
    except Exception as error:  # A layer may raise anything.
        raise conversion_error(
            model, f"{type(error).__name__}: {error}"
        ) from error
    if not computes_in_float32(copy):
        raise conversion_error(model, "a layer still computes in another type")
    return copy


def rebuild(model: keras.Model) -> keras.Model:
    """Return a model with the layers of `model`, all in float32."""
    if hasattr(model, "with_dtype"):  # A VisionTransformer.
        return model.with_dtype("float32")
    return keras.models.clone_model(model, clone_function=rebuild_layer)


def rebuild_layer(layer: keras.Layer) -> keras.Layer:
    """Return a new layer with the config of `layer`, in float32."""
    if isinstance(layer, keras.Model):
        return rebuild(layer)
    config = {**layer.get_config(), "dtype": "float32"}
    return type(layer).from_config(config)


def computes_in_float32(model: keras.Model) -> bool:
    """Return whether all layers compute in float32."""
    return all(
        layer.compute_dtype == "float32" for layer in model._flatten_layers()
    )


def computes_in_16_bits(model: keras.Model) -> bool:
    """Return whether any layer computes in bfloat16 or float16."""
    return any(
        layer.compute_dtype in ("bfloat16", "float16")
        for layer in model._flatten_layers()
    )


def conversion_error(model: keras.Model, reason: str) -> ValueError:
    """Return the error for a model that cannot be converted."""
    return ValueError(
        "`model` must compute in float32, and this one cannot be converted to "
        f"it ({reason}). Build a new model after "
        "keras.config.set_dtype_policy('float32'), copy the weights with "
        "new_model.set_weights(model.get_weights()), and export new_model. "
        f"Received: {type(model).__name__} {model.name!r}"
    )


def check_exportable(model: keras.Model, images: np.ndarray):
    """Raise a ValueError unless `model` can be exported and compared.

    Args:
        model: The model to export.
        images: The images to compare outputs on.
    """
    check_backend()
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: {type(model).__name__}"
        )
    if not is_graph(model):
        raise ValueError(
            "`model` must be functional or sequential, with one input and one "
            f"output. Received: {type(model).__name__} {model.name!r}"
            f"{_advise(model)}"
        )
    if None in model.input_shape[1:]:
        raise ValueError(
            "`model` must have a fixed image size; call its "
            "`with_image_size` first. Received: "
            f"input_shape={model.input_shape}"
        )
    shape = np.shape(images)
    if shape[1:] != model.input_shape[1:] or not shape[0]:
        raise ValueError(
            "`images` must have at least one image to compare outputs on, each "
            f"{model.input_shape[1:]}. Received: shape={shape}"
        )


def _advise(model):
    """Return advice on a model that has no graph; empty if there is none."""
    if isinstance(model, FlexibleVisionTransformer):
        return "; export its `vision_transformer`"
    if isinstance(model, keras.Sequential) and not model.built:
        return ", which is not built; call it on images first"
    return ""


def check_backend():
    """Raise a ValueError unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exporting needs the TensorFlow backend of Keras: set the "
            "environment variable KERAS_BACKEND=tensorflow before importing "
            f"keras. Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def check_path(path: str, suffix: str = ""):
    """Raise a ValueError unless a new file or folder can be written there.

    Args:
        path: Must not exist.
        suffix: The required ending.
    """
    if os.path.exists(path):
        raise ValueError(
            "`path` must not exist yet; nothing is overwritten. "
            f"Received: path={path!r}"
        )
    if not path.endswith(suffix):
        raise ValueError(
            f"`path` must end in `{suffix}`. Received: path={path!r}"
        )


def check_packages(modules: Iterable[str]):
    """Raise a ModuleNotFoundError unless all modules can be imported.

    Args:
        modules: Import names.
    """
    missing, cause = [], None
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(module)
            cause = cause or error
    if missing:
        raise missing_packages("This export", missing) from cause


@dataclasses.dataclass(frozen=True, eq=False)
class ExportOptions:
    """The options of the export formats.

    Args:
        serving: Pre- and post-processing on the server.
        tflite_quantizations: Keys of QUANTIZATIONS; see `export_tflite`.
        tflite_batch_size: The batch size that TFLite files accept; None for
            any.
        calibration_images: Images (B, H, W, C) to calibrate the TFLite
            quantizations "int8" and "static_int8".
        tflite_takes_pixels: Whether the TFLite files take uint8 pixels from
            0 to 255, of twice the height and width if the preprocessing
            antialiases; see `PixelInput`.
        onnx_takes_pixels: Whether the ONNX file takes uint8 pixels from 0 to
            255 instead of floats in the range of the model.
        web_quantization: The quantization of the model in the web page.
        web_engine_dir: A folder with the npm packages of LiteRT.js, as
            `npm pack` writes them. Default: they are fetched once and cached.
    """

    serving: Serving = dataclasses.field(default_factory=Serving)
    tflite_quantizations: Sequence[str] = ("dynamic_int8",)
    tflite_batch_size: int | None = 1
    calibration_images: np.ndarray | None = None
    tflite_takes_pixels: bool = False
    onnx_takes_pixels: bool = False
    web_quantization: str = "float32"
    web_engine_dir: str | None = None

    @property
    def timed_batch_size(self) -> int:
        """The batch size that all formats accept."""
        return self.tflite_batch_size or 1


@dataclasses.dataclass(frozen=True, eq=False)
class ExportRequest:
    """A model to export.

    Args:
        model: A model with a fixed image size.
        images: Images to compare outputs on, (B, H, W, C).
        options: The options of the formats.
        name: Name of the model on servers. Default: the name of `model`.
    """

    model: keras.Model
    images: np.ndarray
    options: ExportOptions
    name: str | None = None

    @functools.cached_property
    def float32_model(self) -> keras.Model:
        """The model in float32, from which most formats are converted."""
        return in_float32(self.model)

    @functools.cached_property
    def description(self) -> dict:
        """The description of the model, with floats as its input."""
        return describe(self.model, self.options.serving, name=self.name)

    @functools.cached_property
    def expected(self) -> np.ndarray:
        """The outputs of the model."""
        return expected_outputs(self.model, self.images)

    @functools.cached_property
    def float32_expected(self) -> np.ndarray:
        """The outputs of the model in float32."""
        if self.float32_model is self.model:
            return self.expected
        return expected_outputs(self.float32_model, self.images)


def _read_nothing(path):
    """Return None: the format stores no description."""


def _accept(options, is_calibrated):
    """Accept all options."""


class Format(NamedTuple):
    """An export format.

    Args:
        write: Takes an ExportRequest and a folder that does not exist yet.
            Writes the files and returns the Agreement of each file.
        suffix: The ending of its files; empty if it writes a folder.
        tolerances: The tolerance of each kind of file.
        start: Takes the path of a file, an image shape (B, H, W, C) and a
            number of threads. Loads the file and returns a function that
            runs it once on a batch of noise, to measure the latency. None if
            the runtime is not part of Python.
        entry: A file that each folder contains, if it writes a folder.
        read: Takes the path of a file. Returns its description, see
            `describe`, or None if it has none.
        readers: Modules that `read` needs.
        packages: Modules that must be installed.
        check: Takes ExportOptions and whether there will be calibration
            images. Raises an error if they are invalid.
        announce: Takes the folder of the format after a version was
            published. Servers watch these folders, so they are published
            last.
    """

    write: Callable[[ExportRequest, pathlib.Path], list[Agreement]]
    suffix: str
    tolerances: Mapping[str, Tolerance]
    start: Callable[[str, tuple[int, ...], int], Callable] | None = None
    entry: str = ""
    read: Callable[[str], dict | None] = _read_nothing
    readers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: Callable[[ExportOptions, bool], None] = _accept
    announce: Callable[[pathlib.Path], None] | None = None
