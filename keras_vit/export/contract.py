"""The contract of an export format: what it receives and what it provides."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, Tolerance
from keras_vit.export.float32 import in_float32
from keras_vit.export.predicting import expected_outputs
from keras_vit.export.serving_options import Serving


@dataclasses.dataclass(frozen=True, eq=False)
class ExportOptions:
    """The choices that formats offer.

    Args:
        serving: How a server reads images and names classes.
        tflite_quantizations: Keys of QUANTIZATIONS; see `export_tflite`.
        tflite_batch_size: The batch size that TFLite files accept; None for
            any.
        calibration_images: Images (B, H, W, C) to calibrate the TFLite
            quantizations "int8" and "static_int8" on.
        onnx_takes_pixels: Let the ONNX file take uint8 pixels from 0 to 255
            instead of floats in the range of the model.
    """

    serving: Serving = dataclasses.field(default_factory=Serving)
    tflite_quantizations: Sequence[str] = ("dynamic_int8",)
    tflite_batch_size: int | None = 1
    calibration_images: np.ndarray | None = None
    onnx_takes_pixels: bool = False

    @property
    def timed_batch_size(self) -> int:
        """The batch size that all formats accept."""
        return self.tflite_batch_size or 1


@dataclasses.dataclass(frozen=True, eq=False)
class ExportRequest:
    """A model to export.

    Args:
        model: A model of fixed image size.
        images: Images to compare outputs on, (B, H, W, C).
        options: The choices that formats offer.
    """

    model: keras.Model
    images: np.ndarray
    options: ExportOptions

    @functools.cached_property
    def float32_model(self) -> keras.Model:
        """The model in float32, which most formats are converted from."""
        return in_float32(self.model)

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


def _accept(options, is_calibrated):
    """Check nothing."""


class Format(NamedTuple):
    """An export format.

    Args:
        write: Takes an ExportRequest and a folder that does not exist yet.
            Writes the files and returns the Agreement of each.
        start: Takes the path of a file, an image shape (B, H, W, C) and a
            number of threads. Loads the file and returns a function that
            runs it once on a batch of noise, for the timing.
        suffix: The ending of its files; empty if it writes a folder.
        tolerances: The tolerance of each kind of file.
        packages: Modules that must be installed.
        check: Takes ExportOptions and whether there will be calibration
            images. Raises an error if they do not fit.
        announce: Takes the folder of the format when a version is in place.
            Servers watch these folders, so they are published last.
    """

    write: Callable[[ExportRequest, pathlib.Path], list[Agreement]]
    start: Callable[[str, tuple[int, ...], int], Callable]
    suffix: str
    tolerances: Mapping[str, Tolerance]
    packages: tuple[str, ...] = ()
    check: Callable[[ExportOptions, bool], None] = _accept
    announce: Callable[[pathlib.Path], None] | None = None
