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

from keras_vit.errors import missing_packages
from keras_vit.export.agreement import (
    Agreement,
    Tolerance,
    expected_outputs,
    find_wrong_scale,
    refuse_faults,
)
from keras_vit.files import draft_folder
from keras_vit.layers.base import is_quantized
from keras_vit.models import FlexibleVisionTransformer, VisionTransformer
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    is_graph,
    name_output,
    split_at_head,
)
from keras_vit.models.tuning import without_lora
from keras_vit.preprocessing.description import (
    ImageStep,
    Mode,
    Preprocessing,
    to_fractions,
)
from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.model_inputs import find_scaling
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
            Default: as the model states, see `input_preprocessing`; for one
            that scales no pixels, as in `Preprocessing()`.
        read_image: Maps the content of an image file, a scalar string tensor,
            to the input of the model, (H, W, C) floats. Default: the image is
            turned upright, and then as `preprocessing` says.
        image_steps: What `read_image` does, as data for other runtimes; see
            `keras_vit.preprocessing.description`.
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

        Raises:
            ValueError: If its first layers do not tell what images it reads.
        """
        if self.preprocessing is not None:
            return self
        found = find_scaling(model) if is_graph(model) else None
        return dataclasses.replace(self, preprocessing=found)

    def steps(self, image_size: Sequence[int]) -> list[ImageStep] | None:
        """Return the steps of the preprocessing; None if they are not known."""
        if self.read_image is None:
            return self.settings.steps(image_size)
        return None if self.image_steps is None else [*self.image_steps]


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
    `keras_vit.preprocessing.description`, and (x / 255 - `mean`) / `deviation`
    of each channel is the input. `output` is the kind of output, and
    `activation` is the function that turns it into probabilities.

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
    names = None
    if output != "features":
        numbers = range(model.output_shape[-1])
        names = [*map(str, serving.class_names or numbers)]
    steps = serving.steps((height, width))
    mean, deviation = serving.settings.for_channels(channels)
    factor = pixels_per_side or 1
    if steps is not None:
        steps = [
            {k: v * factor if isinstance(v, int) else v for k, v in s.items()}
            for s in steps
        ]
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
        "image_steps": steps,
        "mean": None if pixels_per_side else mean,
        "deviation": None if pixels_per_side else deviation,
        "output": output,
        "activation": serving.activation if output == "logits" else None,
        "class_names": names,
    }


def to_text(description: Mapping[str, Any]) -> str:
    """Return a description as JSON."""
    return json.dumps(description, ensure_ascii=False)


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, with equal weights.

    A model that already computes in float32 is returned unchanged.
    """
    if is_quantized(model):
        raise ValueError(
            "A model quantized by Keras cannot be converted; export the model "
            f"that it was quantized from. Received: model={model.name!r}"
        )
    if compute_dtypes(model) == {"float32"}:
        return model
    try:
        copy = rebuild(model)
        copy.set_weights(model.get_weights())
        reason = "a layer still computes in another type"
    except Exception as error:  # A layer may raise anything.
        copy, reason = None, f"{type(error).__name__}: {error}"
    if copy is None or compute_dtypes(copy) != {"float32"}:
        raise ValueError(
            "`model` must compute in float32, and this one cannot be converted "
            f"to it ({reason}). Build a new model after "
            "keras.config.set_dtype_policy('float32'), copy the weights with "
            "new_model.set_weights(model.get_weights()), and export new_model. "
            f"Received: {type(model).__name__} {model.name!r}"
        )
    return copy


def rebuild(layer: keras.Layer) -> keras.Layer:
    """Return a new layer or model with the config of `layer`, in float32."""
    if hasattr(layer, "with_dtype"):  # A VisionTransformer.
        return layer.with_dtype("float32")
    if isinstance(layer, keras.Model):
        return keras.models.clone_model(layer, clone_function=rebuild)
    config = {**layer.get_config(), "dtype": "float32"}
    return type(layer).from_config(config)


def compute_dtypes(model: keras.Model) -> set[str]:
    """Return the types that the layers compute in."""
    return {layer.compute_dtype for layer in model._flatten_layers()}


def check_exportable(model: keras.Model, images: np.ndarray):
    """Raise a ValueError unless `model` can be exported and compared."""
    check_backend()
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: {type(model).__name__}"
        )
    if not is_graph(model):
        advice = ""
        if isinstance(model, FlexibleVisionTransformer):
            advice = "; export its `vision_transformer`"
        elif isinstance(model, keras.Sequential) and not model.built:
            advice = ", which is not built; call it on images first"
        raise ValueError(
            "`model` must be functional or sequential, with one input and one "
            f"output. Received: {type(model).__name__} {model.name!r}{advice}"
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


def check_backend():
    """Raise a ValueError unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exporting needs the TensorFlow backend of Keras: set the "
            "environment variable KERAS_BACKEND=tensorflow before importing "
            f"keras. Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def check_packages(modules: Iterable[str]):
    """Raise a ModuleNotFoundError unless all modules can be imported."""
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
        files: JPEG or PNG files that some of the images to compare outputs on
            were read from, by the index of the image. `serve_bytes` must give
            for them what the model gives for the images.
    """

    serving: Serving = dataclasses.field(default_factory=Serving)
    tflite_quantizations: Sequence[str] = ("dynamic_int8",)
    tflite_batch_size: int | None = 1
    calibration_images: np.ndarray | None = None
    tflite_takes_pixels: bool = False
    onnx_takes_pixels: bool = False
    web_quantization: str = "float32"
    web_engine_dir: str | os.PathLike | None = None
    files: Mapping[int, bytes] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class ExportRequest:
    """A model to export.

    Args:
        model: A model with a fixed image size, without LoRA weights.
        images: Images to compare outputs on, (B, H, W, C).
        options: The options of the formats.
        name: Name of the model on servers. Default: the name of `model`.
        tolerance: The allowed differences. Default: those of the format.
    """

    model: keras.Model
    images: np.ndarray
    options: ExportOptions
    name: str | None = None
    tolerance: Tolerance | None = None

    @functools.cached_property
    def serving(self) -> Serving:
        """Pre- and post-processing on the server, complete."""
        return self.options.serving.for_model(self.model)

    @functools.cached_property
    def float32_model(self) -> keras.Model:
        """The model in float32, from which most formats are converted."""
        return in_float32(self.model)

    def write(self, row: "Format", folder: pathlib.Path) -> list[Agreement]:
        """Write and compare the files of a format, in an empty folder."""
        return [
            dataclasses.replace(a, faults=(*self.scale_faults, *a.faults))
            for a in row.write(self, folder)
        ]

    def describe(self, pixels_per_side: int | None = None) -> dict:
        """Return `describe` of the model."""
        return describe(
            self.model,
            self.serving,
            name=self.name,
            pixels_per_side=pixels_per_side,
        )

    @functools.cached_property
    def scale_faults(self) -> list[str]:
        """What is wrong with the scale of the images; see there."""
        mode = self.serving.settings.normalization
        fractions = to_fractions(self.images, mode)
        return find_wrong_scale(self.images, fractions)

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


class Format(NamedTuple):
    """An export format.

    Args:
        write: Takes an ExportRequest and an empty folder. Writes the files
            and returns the Agreement of each file.
        suffix: The ending of its files; empty if it writes a folder.
        read: Takes the path of a file. Returns its description, see
            `describe`, or None if it has none.
        start: Takes the path of a file, an image shape (B, H, W, C) and a
            number of threads. Loads the file and returns a function that
            runs it once on a batch of noise, to measure the latency. None if
            the runtime is not part of Python.
        entry: A file that each folder contains, if it writes a folder.
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
    read: Callable[[str], dict | None]
    start: Callable[[str, tuple[int, ...], int], Callable] | None = None
    entry: str = ""
    readers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: Callable[[ExportOptions, bool], None] | None = None
    announce: Callable[[pathlib.Path], None] | None = None

    def check_options(self, options: ExportOptions, is_calibrated: bool):
        """Raise an error if a package is missing or an option is invalid."""
        check_packages(self.packages)
        if self.check is not None:
            self.check(options, is_calibrated)


def export_file(
    row: Format,
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    *,
    name: str | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    **options,
) -> Agreement:
    """Write one file or folder of a format, complete or not at all.

    Args:
        row: A value of FORMATS.
        model: A model with a fixed image size.
        path: The file or folder to write; must not exist.
        images: Images to compare outputs on, (B, H, W, C), in the range of
            the model.
        name: Name of the model in its description. Default: that of `model`.
        tolerance: The allowed differences. Default: those of the format.
        must_agree: Whether a larger difference is an error.
        **options: The fields of ExportOptions.

    Returns:
        The comparison of the export with `model`.

    Raises:
        ValueError: If the model cannot be exported, an argument is invalid,
            or `path` exists.
        ModuleNotFoundError: If a package is missing.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path = pathlib.Path(path)
    check_exportable(model, images)
    check_new(path)
    if path.suffix != row.suffix and row.suffix:
        raise ValueError(
            f"`path` must end in `{row.suffix}`. Received: path={str(path)!r}"
        )
    options = ExportOptions(**options)
    row.check_options(options, options.calibration_images is not None)
    model = without_lora(model)
    request = ExportRequest(model, images, options, name, tolerance)
    # Servers ignore names that begin with a dot.
    with draft_folder(path) as draft:
        (agreement,) = request.write(row, draft)
        written = pathlib.Path(agreement.path)
        agreement = dataclasses.replace(agreement, path=str(path))
        if must_agree:
            refuse_faults(agreement)
        if not row.suffix:
            os.rename(draft, path)
            return agreement
        # OpenVINO's .xml file refers to the .bin file, so it comes last.
        parts = draft.glob(f"{written.stem}.*")
        for part in sorted(parts, key=lambda part: part == written):
            check_new(path.with_suffix(part.suffix))
            os.replace(part, path.with_suffix(part.suffix))
    return agreement


def check_new(path: pathlib.Path):
    """Raise a ValueError if there is already something at `path`."""
    if path.exists():
        raise ValueError(
            "`path` must not exist yet; nothing is overwritten. "
            f"Received: path={str(path)!r}"
        )
