"""What an export format is given, and what it must provide."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.arguments import as_whole, is_number
from keras_vit.errors import import_packages
from keras_vit.export.agreement import (
    BATCH_SIZE,
    Agreement,
    Tolerance,
    compare,
    compare_outputs,
    expected_outputs,
    find_wrong_scale,
    join,
    size_on_disk,
)
from keras_vit.known import KnownScore, with_features
from keras_vit.layers.base import refuse_quantized
from keras_vit.models import FlexibleVisionTransformer, VisionTransformer
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    CLASSIFIER_OUTPUTS,
    PIXEL_TASKS,
    find_dense,
    is_graph,
    name_output,
    split_at_head,
)
from keras_vit.preprocessing.description import (
    ImageStep,
    Preprocessing,
    to_fractions,
)
from keras_vit.preprocessing.model_inputs import find_scaling
from keras_vit.serving.models import run_in_batches
from keras_vit.tables import check_name
from keras_vit.version import __version__


@dataclasses.dataclass(frozen=True)
class Serving:
    """Pre- and post-processing on the server.

    Args:
        class_names: Names of the classes, in the order of the outputs.
            Default: those that the model knows, or their numbers.
        top: Largest number of classes in a prediction. Default: 5; of several
            labels, all, as a label may be above its threshold with a small
            probability.
        activation: The function that turns logits into probabilities, a key of
            CLASSIFIER_ACTIVATIONS. Default: as the model states, or "softmax".
        thresholds: If an image may have several labels, the probability from
            which it has each of them, in the order of the outputs; the
            activation must be "sigmoid". Default: an image has one label.
        known: Tells whether an image shows what the model has learned; then
            exports have the outputs `score` and `is_known`, (B,) each.
        preprocessing: How images are resized, cropped and normalised.
            Default: as the model states, see `input_preprocessing`; for one
            that scales no pixels, as in `Preprocessing()`.
        image_steps: The operations that resize and crop an upright image, in
            place of those of `preprocessing`; see
            `keras_vit.preprocessing.description`.
        use_attention: Whether to add the signatures `attention` and
            `attention_bytes`.
        output: The kind of output of the model; see `name_output`. Default:
            inferred from the last layers.
        larger_depths: What larger depths mean, a key of LARGER_DEPTHS: "far",
            such as metres, or "near", such as the inverse depths of Depth
            Anything. Default: "far" of a DensePredictor whose head ends with a
            sigmoid, a share of the largest depth, and "near" of one with
            another head; of other models, unknown.
    """

    class_names: Sequence[str] | None = None
    top: int | None = None
    activation: str | None = None
    thresholds: Sequence[float] | None = None
    known: KnownScore | None = None
    preprocessing: Preprocessing | None = None
    image_steps: Sequence[Mapping] | None = None
    use_attention: bool = False
    output: str | None = None
    larger_depths: str | None = None

    @property
    def settings(self) -> Preprocessing:
        """The preprocessing, or its default."""
        return self.preprocessing or Preprocessing()

    def count_top(self, num_classes: int) -> int:
        """Return the number of classes in a prediction."""
        default = 5 if self.thresholds is None else num_classes
        return min(self.top or default, num_classes)

    def for_model(self, model: keras.Model) -> "Serving":
        """Return these options with what a model itself tells, if missing.

        Raises:
            ValueError: If they do not fit the model, or its first layers do
                not tell what images it reads.
        """
        found = self
        if self.preprocessing is None and is_graph(model):
            settings = find_scaling(model)
            found = dataclasses.replace(self, preprocessing=settings)
        config = getattr(model, "config", None)
        stated = getattr(config, "probabilities", None) or "softmax"
        found = dataclasses.replace(found, activation=self.activation or stated)
        output = name_output(model, self.output)
        if (dense := find_dense(model)) is not None:
            found = found._for_dense(dense, output)
        elif self.class_names is None and output in CLASSIFIER_OUTPUTS:
            names = getattr(config, "class_names", None)
            found = dataclasses.replace(found, class_names=names)
        check_serving(model, found)
        return found

    def _for_dense(self, model, output):
        """Return these options with what a DensePredictor tells."""
        if output == "pixel_logits" and self.class_names is None:
            names = model.head.class_names
            return dataclasses.replace(self, class_names=names)
        if output == "depths" and self.larger_depths is None:
            return dataclasses.replace(self, larger_depths=model.larger_depths)
        return self

    def steps(self, image_size: Sequence[int]) -> list[ImageStep]:
        """Return the operations that resize and crop an upright image."""
        if self.image_steps is not None:
            return [*self.image_steps]
        return self.settings.steps(image_size)


def check_serving(model: keras.Model, serving: Serving):
    """Raise a ValueError unless `model` can be served with these options."""
    check_name(CLASSIFIER_ACTIVATIONS, serving.activation, "activation")
    num_classes = model.output_shape[-1]
    names = serving.class_names
    output = name_output(model, serving.output)
    is_classifier = output in CLASSIFIER_OUTPUTS
    if is_classifier and len(model.output_shape) != 2:
        raise ValueError(
            "`output` must be 'features', 'pixel_logits', 'depths' or None for "
            "a model whose outputs are not (B, classes), such as those of each "
            f"pixel. Received: output={serving.output!r}, outputs "
            f"{model.output_shape}"
        )
    if output in PIXEL_TASKS:
        check_pixel_outputs(model, serving, output)
    check_name(LARGER_DEPTHS, serving.larger_depths, "larger_depths")
    if serving.larger_depths is not None and output != "depths":
        raise ValueError(
            "`larger_depths` is for a model that returns depths. Received: "
            f"larger_depths={serving.larger_depths!r}, and a model that "
            f"returns {output}"
        )
    if names is not None and not (is_classifier or output == "pixel_logits"):
        raise ValueError(
            "`class_names` are for a model with a classifier; if its last "
            "layer is one, pass `output`. Received: "
            f"{len(names)} names for model={model.name!r}, which returns "
            f"{output}"
        )
    if names is not None and len(names) != num_classes:
        raise ValueError(
            "`class_names` must have a name for each class. Received: "
            f"{len(names)} names for {num_classes} classes"
        )
    if serving.top is not None:
        as_whole(serving.top, "top")
    if serving.thresholds is not None:
        check_thresholds(serving, num_classes, output)
    if serving.known is not None and (
        output != "logits" or serving.thresholds is not None
    ):
        raise ValueError(
            "`known` is for a model that returns logits, of which an image has "
            "one class. Received: "
            + ("thresholds" if serving.thresholds is not None else model.name)
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


# The most numbers of classes that a PNG of 16 bits holds.
MOST_CLASSES = 2**16
# What larger depths may mean.
LARGER_DEPTHS = (None, "far", "near")


def check_pixel_outputs(model: keras.Model, serving: Serving, output: str):
    """Raise a ValueError unless outputs are those of each pixel.

    Or if an option was given that only classifiers of images have.
    """
    shape, is_depth = model.output_shape, output == "depths"
    channels = shape[-1]
    if len(shape) != 4 or not (
        channels == 1 if is_depth else 2 <= channels <= MOST_CLASSES
    ):
        kind = "1" if is_depth else f"2 to {MOST_CLASSES:,} classes"
        raise ValueError(
            f"`output` can only be {output!r} for outputs (B, H, W, C), where "
            f"C is {kind}. Received: outputs {shape}"
        )
    for name, default in (("top", None), ("activation", "softmax")):
        if (value := getattr(serving, name)) != default:
            raise ValueError(
                f"`{name}` is for a classifier of images. Received: "
                f"{name}={value!r}, and a model that returns {output}"
            )


def check_thresholds(serving: Serving, num_classes: int, output: str):
    """Raise a ValueError unless the thresholds fit the classes."""
    found = [*serving.thresholds]
    is_classifier = output in CLASSIFIER_OUTPUTS
    if not is_classifier or serving.activation != "sigmoid":
        raise ValueError(
            "`thresholds` are for a classifier whose `activation` is "
            f"'sigmoid'. Received: activation={serving.activation!r}"
            f"{'' if is_classifier else f', and a model that returns {output}'}"
        )
    if len(found) != num_classes:
        raise ValueError(
            "`thresholds` must have a number for each class. Received: "
            f"{len(found)} numbers for {num_classes} classes"
        )
    for index, number in enumerate(found):
        if not (is_number(number) and 0 <= number <= 1):
            raise ValueError(
                "`thresholds` must be numbers from 0 to 1. "
                f"Received: thresholds[{index}]={number!r}"
            )


def make_forward(
    model: keras.Model,
    output: str | None = None,
    is_short: bool = True,
    known: KnownScore | None = None,
) -> Callable:
    """Return a function that computes the outputs and features of `model`.

    A head on the class token reads only one token of the last block. So the
    last block computes only that token, from the keys and values of all
    tokens. This saves about 10 of the 12 D^2 multiplications for each token of
    that block, 7 % in a model with 12 blocks.

    Shapes:
        The function takes images (B, H, W, C) and returns a dict: the outputs
        under the name that `name_output` returns, and "features" (B, D), the
        input of the head, which is the last layer with weights; without a
        classifier, they are the outputs themselves. With `known` also "score"
        and "is_known", (B,).
    """
    name = name_output(model, output)
    compute = split_at_head(model, name in CLASSIFIER_OUTPUTS, is_short)

    def forward(images):
        features, outputs = compute(images)
        found = {"features": features, name: outputs}
        if known is not None:
            scores = known(features, outputs)
            found |= {"score": scores, "is_known": known.is_known(scores)}
        return found

    return forward


def select_answers(outputs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the outputs of an export: those of `make_forward`, in float32.

    Args:
        outputs: What the function returned.
        name: The name of the outputs of the model.
    """
    return {
        key: x if key == "is_known" else keras.ops.cast(x, "float32")
        for key, x in outputs.items()
        if key in (name, "score", "is_known")
    }


KEY = "keras_vit"  # Of the description in ONNX and OpenVINO files.


def to_text(description: Mapping[str, Any]) -> str:
    """Return a description as JSON."""
    return json.dumps(description, ensure_ascii=False)


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, with equal weights.

    A model that already computes in float32 is returned unchanged.
    """
    refuse_quantized(model, "export the model that it was quantized from")
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
    if hasattr(layer, "with_dtype"):  # A VisionTransformer, or a dense one.
        return layer.with_dtype("float32")
    if isinstance(layer, keras.Model):
        inputs = None
        if isinstance(layer, keras.Sequential):
            # Its own input has the dtype of its first layer.
            inputs = keras.Input(batch_shape=layer.input_shape)
        return keras.models.clone_model(layer, inputs, rebuild)
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


@dataclasses.dataclass(frozen=True, eq=False)
class ExportOptions:
    """The options of the export formats.

    Args:
        serving: Pre- and post-processing on the server.
        tflite_quantizations: Keys of QUANTIZATIONS. "float32". "float16": half
            the size. "dynamic_int8": int8 weights, with scales of the inputs
            computed in each call; a quarter of the size, and the fastest on a
            CPU. "int8": only integers, including inputs and outputs, for
            integer-only devices; less accurate. "static_int8": only the matrix
            products in int8, with ranges measured beforehand.
        tflite_batch_size: The batch size that TFLite files accept; None for
            any.
        calibration_images: Images (B, H, W, C), at least about a hundred
            typical ones, to measure the ranges of int8 numbers for the
            quantizations "int8" and "static_int8".
        tflite_takes_pixels: Whether the TFLite files take uint8 pixels from
            0 to 255, of twice the height and width if the preprocessing
            antialiases; see `PixelInput`.
        onnx_takes_pixels: Whether the ONNX file takes uint8 pixels from 0 to
            255 instead of floats in the range of the model.
        onnx_batch_size: The only batch size that the ONNX file accepts, with
            all shapes fixed and all that follows from weights alone stored,
            as TensorRT takes it. None: any.
        web_quantization: The quantization of the model in the web page.
        web_engine_dir: A folder with the npm packages of LiteRT.js, as
            `npm pack` writes them. Default: they are fetched once and cached.
        files: The contents of JPEG or PNG files. `serve_bytes` must give for
            them what the model gives for the images that Pillow reads.
    """

    serving: Serving = dataclasses.field(default_factory=Serving)
    tflite_quantizations: Sequence[str] = ("dynamic_int8",)
    tflite_batch_size: int | None = 1
    calibration_images: np.ndarray | None = None
    tflite_takes_pixels: bool = False
    onnx_takes_pixels: bool = False
    onnx_batch_size: int | None = None
    web_quantization: str = "float32"
    web_engine_dir: str | os.PathLike | None = None
    files: Sequence[bytes] = ()


# Of the outputs that are compared, which take about 50 bytes each meanwhile.
MOST_NUMBERS = 2**26


@dataclasses.dataclass(frozen=True, eq=False)
class ExportRequest:
    """A model to export.

    Args:
        model: A model with a fixed image size, without LoRA weights.
        images: Images to compare outputs on, (B, H, W, C). Of large maps, the
            first are kept whose outputs have at most MOST_NUMBERS numbers.
        options: The options of the formats.
        name: Name of the model on servers. Default: the name of `model`.
        tolerance: The allowed differences. Default: those of the format.
    """

    model: keras.Model
    images: np.ndarray
    options: ExportOptions
    name: str | None = None
    tolerance: Tolerance | None = None

    def __post_init__(self):
        count = MOST_NUMBERS // math.prod(self.model.output_shape[1:])
        object.__setattr__(self, "images", self.images[: max(count, 1)])

    @functools.cached_property
    def serving(self) -> Serving:
        """Pre- and post-processing on the server, complete."""
        return self.options.serving.for_model(self.model)

    @functools.cached_property
    def float32_model(self) -> keras.Model:
        """The model in float32, from which most formats are converted."""
        return in_float32(self.model)

    @property
    def output(self) -> str:
        """The name of the output."""
        return name_output(self.model, self.serving.output)

    def describe(self, pixels_per_side: int | None = None) -> dict[str, Any]:
        """Describe an export, in values of JSON.

        `input` is the shape and the dtype of an image; `image_steps` lead from
        an upright image with pixels x from 0 to 255 to its size, see
        `keras_vit.preprocessing.description`, and (x / 255 - `mean`) /
        `deviation` of each channel is the input. `output` is the kind of
        output, and `activation` is the function that turns it into
        probabilities. Outputs for each pixel have a `task`, "segment" or
        "depth", and an `output_size`, and depths may have `larger_depths`,
        "far" or "near". `thresholds` are there only if an image may have
        several labels: it has those whose probabilities reach theirs. `known`
        is there only if the export tells known images: its kind of score, and
        the threshold that the score of a known image reaches.

        Args:
            pixels_per_side: If the input is uint8, the number of its pixels
                for each side of a pixel of the model.
        """
        serving, names = self.serving, None
        height, width, channels = self.model.input_shape[1:]
        if self.output in (*CLASSIFIER_OUTPUTS, "pixel_logits"):
            numbers = range(self.model.output_shape[-1])
            names = [*map(str, serving.class_names or numbers)]
        mean, deviation = serving.settings.for_channels(channels)
        factor = pixels_per_side or 1
        description = {
            "format": "keras_vit 1",
            "version": __version__,
            "name": self.name or self.model.name,
            "input": {
                "height": height * factor,
                "width": width * factor,
                "channels": channels,
                "dtype": "uint8" if pixels_per_side else "float32",
            },
            "image_steps": [
                {
                    key: x * factor if isinstance(x, int) else x
                    for key, x in step.items()
                }
                for step in serving.steps((height, width))
            ],
            "mean": None if pixels_per_side else mean,
            "deviation": None if pixels_per_side else deviation,
            "output": self.output,
            "activation": (
                serving.activation if self.output == "logits" else None
            ),
            "class_names": names,
        }
        if self.output in PIXEL_TASKS:
            rows, columns = self.model.output_shape[1:3]
            description["task"] = PIXEL_TASKS[self.output]
            description["output_size"] = {"height": rows, "width": columns}
        if serving.larger_depths is not None:
            description["larger_depths"] = serving.larger_depths
        if serving.settings.pixel_range:
            description["pixel_range"] = [*serving.settings.pixel_range]
        if serving.thresholds is not None:
            description["thresholds"] = [*map(float, serving.thresholds)]
        if serving.known is not None:
            description["known"] = {
                "score": serving.known.kind,
                "threshold": float(serving.known.threshold),
            }
        return description

    @functools.cached_property
    def _with_features(self):
        return functools.cache(with_features)

    def answer(
        self, model: keras.Model, images: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what `model` answers to images, by the outputs of an export.

        Args:
            model: The model, or the one in float32.
            images: (B, H, W, C), in its range.
        """
        known = self.serving.known
        if known is None:
            return {self.output: expected_outputs(model, images)}
        found = expected_outputs(self._with_features(model), images)
        features, outputs = np.split(found, [-model.output_shape[-1]], axis=1)
        scores = keras.ops.convert_to_numpy(known(features, outputs))
        return {
            self.output: outputs,
            "score": scores,
            "is_known": known.is_known(scores),
        }

    @functools.cached_property
    def decide(self) -> Callable[[np.ndarray], np.ndarray | None] | None:
        """What `compare` decides by; None for one label of an image."""
        if self.output == "pixel_logits":
            return lambda outputs: np.argmax(outputs, axis=-1)
        if self.output == "depths":
            return lambda outputs: None
        if self.serving.thresholds is None:
            return None
        limits = np.asarray(self.serving.thresholds, "float64")
        if self.output == "logits":
            with np.errstate(divide="ignore"):  # Of 0 and 1.
                limits = np.log(limits) - np.log1p(-limits)
        return lambda outputs: outputs >= limits

    @functools.cached_property
    def expected(self) -> dict[str, np.ndarray]:
        """What the model answers to the images."""
        return self.answer(self.model, self.images)

    @functools.cached_property
    def float32_expected(self) -> dict[str, np.ndarray]:
        """What the model answers in float32."""
        if self.float32_model is self.model:
            return self.expected
        return self.answer(self.float32_model, self.images)

    @functools.cached_property
    def float32_faults(self) -> tuple[str, ...]:
        """Faults of the model in float32, compared with the model itself."""
        if self.float32_model is self.model:
            return ()
        found = compare(
            self.expected[self.output],
            self.float32_expected[self.output],
            Tolerance(cosine=0.99),
            self.decide,
        )
        return tuple(f"the model in float32: {x}" for x in found.faults)

    def ask(self, inputs=None, seen=None) -> "list[Question]":
        """Return the question of a file with one input.

        Args:
            inputs: What the file takes. Default: the images.
            seen: The images that the model gets then.
        """
        if inputs is None:
            inputs, expected = self.images, self.float32_expected
        else:
            expected = self.answer(self.float32_model, seen)
        return [Question(inputs, expected, decide=self.decide)]


class Question(NamedTuple):
    """A request to an export, and the answer of the model.

    Args:
        inputs: Images or image files, (B, ...).
        expected: The outputs of the model by name, (B, ...).
        signature: The signature of a SavedModel.
        tolerance: The allowed differences, if not those of the file.
        about: What faults begin with, if not the signature.
        decide: See `compare`.
    """

    inputs: np.ndarray
    expected: Mapping[str, np.ndarray]
    signature: str = "serving_default"
    tolerance: Tolerance | None = None
    about: str = ""
    decide: Callable[[np.ndarray], np.ndarray | None] | None = None


class Loaded(NamedTuple):
    """An exported file or folder in memory.

    Args:
        call: Takes a batch and, for a SavedModel, the name of a signature.
            Returns the outputs by name.
        shape: The shape of the images, (B, H, W, C); B is None for any.
        dtype: Their dtype.
    """

    call: Callable[..., dict[str, np.ndarray]]
    shape: tuple[int | None, ...]
    dtype: str = "float32"


class Written(NamedTuple):
    """A file or folder that a format has written.

    Args:
        path: The path.
        kind: The kind of export, see `Agreement`.
        loaded: What was read back.
        questions: What to compare; the first one counts the classes.
        tolerance: The allowed differences.
        faults: What is wrong though the answers may be right.
        warnings: What else there is to say.
        partitions, left_out: See `Agreement`.
    """

    path: pathlib.Path
    kind: str
    loaded: Loaded
    questions: Sequence[Question]
    tolerance: Tolerance
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    partitions: int | None = None
    left_out: tuple[str, ...] = ()


class Format(NamedTuple):
    """An export format.

    Args:
        write: Takes an ExportRequest and an empty folder. Writes the files
            and returns a `Written` for each.
        suffix: The ending of its files; empty if it writes a folder.
        load: Takes the path of a file or folder. Takes also, to measure the
            latency, a number of threads and a batch size. Returns `Loaded`.
        read: Takes the path of a file. Returns its description, see
            `ExportRequest.describe`, or None if it has none.
        in_float32: Whether it writes a model of mixed precision in float32.
        has_latency: Whether it can be timed here.
        entry: A file that each folder contains, if it writes a folder.
        readers: Modules that `read` needs.
        packages: Modules that must be installed.
        check: Takes ExportOptions. Raises an error if they are invalid.
        announce: Takes the folder of the format after a version was
            published. Servers watch these folders, so they are published
            last.
    """

    write: Callable[[ExportRequest, pathlib.Path], list[Written]]
    suffix: str
    load: Callable[..., Loaded]
    read: Callable[[str], dict | None]
    in_float32: bool = True
    has_latency: bool = True
    entry: str = ""
    readers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: Callable[[ExportOptions], None] | None = None
    announce: Callable[[pathlib.Path], None] | None = None

    def check_options(self, options: ExportOptions):
        """Raise an error if a package is missing or an option is invalid."""
        import_packages("This export", self.packages)
        if self.check is not None:
            self.check(options)


def write_and_compare(
    row: Format, request: ExportRequest, draft: pathlib.Path, path: pathlib.Path
) -> list[Agreement]:
    """Write the files of a format, read them back and compare the outputs.

    Args:
        row: The format.
        request: The model to export.
        draft: An empty folder to write to.
        path: Where the content of that folder will be.
    """
    mode = request.serving.settings.normalization
    fractions = to_fractions(request.images, mode)
    wrong_scale = find_wrong_scale(request.images, fractions)
    agreements = []
    for written in row.write(request, draft):
        parts = {}
        for question in written.questions:
            found = run_in_batches(
                functools.partial(
                    written.loaded.call, signature=question.signature
                ),
                question.inputs,
                written.loaded.shape[0]
                or min(BATCH_SIZE, len(question.inputs)),
            )
            tolerance = (
                question.tolerance or request.tolerance or written.tolerance
            )
            agreement = compare_outputs(
                question.expected, found, tolerance, question.decide
            )
            if written.loaded.shape[0] is None and len(question.inputs) > 1:
                # A file for any number of images may hold a fixed one.
                alone = compare_outputs(
                    {name: x[:1] for name, x in question.expected.items()},
                    written.loaded.call(
                        question.inputs[:1], signature=question.signature
                    ),
                    tolerance,
                    question.decide,
                )
                faults = (f"one input alone: {x}" for x in alone.faults)
                agreement = dataclasses.replace(
                    agreement, faults=(*agreement.faults, *faults)
                )
            parts[question.about or question.signature] = agreement
        # Another format may have made it.
        uses_float32 = row.in_float32 and "float32_model" in vars(request)
        [agreement, *others] = parts.values()
        if others:
            agreement = join(parts)
        agreements.append(
            dataclasses.replace(
                agreement,
                path=str(path / written.path.relative_to(draft)),
                kind=written.kind,
                num_bytes=size_on_disk(written.path),
                faults=(
                    *wrong_scale,
                    *(request.float32_faults if uses_float32 else ()),
                    *agreement.faults,
                    *written.faults,
                ),
                warnings=(*agreement.warnings, *written.warnings),
                partitions=written.partitions,
                left_out=written.left_out,
            )
        )
    return agreements
