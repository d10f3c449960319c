"""The interface of an export format: its inputs and its functions."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, Tolerance
from keras_vit.export.description import describe
from keras_vit.export.float32 import in_float32
from keras_vit.export.predicting import expected_outputs
from keras_vit.export.serving_options import Serving


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
            antialiases; see `keras_vit.export.pixel_inputs`.
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
        measure: Takes the path of a file, and returns other measurements,
            which the report prints as a sentence.
        entry: A file that each folder contains, if it writes a folder.
        read: Takes the path of a file. Returns its description, see
            `keras_vit.export.description`, or None if it has none.
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
    measure: Callable[[str], Any] | None = None
    entry: str = ""
    read: Callable[[str], dict | None] = _read_nothing
    readers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: Callable[[ExportOptions, bool], None] = _accept
    announce: Callable[[pathlib.Path], None] | None = None
