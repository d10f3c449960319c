"""QUANTIZATIONS: the types in which a TFLite file stores and computes numbers.

The `convert` of each row of QUANTIZATIONS takes TensorFlow's converter, the
calibration images and the batch size, and returns the content of the file.
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.export.agreement import FLOAT32, Tolerance
from keras_vit.export.predicting import batches


def to_float32(converter, calibration_images, batch_size) -> bytes:
    """Convert without quantization."""
    return converter.convert()


def to_float16(converter, calibration_images, batch_size) -> bytes:
    """Convert with the weights in float16."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def to_dynamic_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with int8 weights; the runtime quantizes their inputs."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def to_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert all weights, activations, inputs and outputs to integers."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.representative_dataset = lambda: (
        {"images": batch} for batch in batches(calibration_images, batch_size)
    )
    converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    # The converter itself uses this interpreter for the calibration.
    with silence("tf.lite.Interpreter is deprecated"):
        return converter.convert()


def to_static_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with int8 products of tokens and weights, and fixed scales."""
    from ai_edge_quantizer import qtyping, quantizer

    calibration = [
        {"images": batch} for batch in batches(calibration_images, batch_size)
    ]
    with silence("experimental_preserve_all_tensors"):
        calibrator = quantizer.Quantizer(bytearray(converter.convert()))
        calibrator.add_static_config(
            ".*", qtyping.TFLOperationName.FULLY_CONNECTED, 8, 8
        )
        ranges = calibrator.calibrate(
            {"serving_default": calibration}, num_threads=1
        )
        return bytes(calibrator.quantize(ranges).quantized_model)


@contextlib.contextmanager
def silence(words: str):
    """Hide the output of a library, and its warnings about itself.

    Args:
        words: A part of the first line of the warning.
    """
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", f".*{words}")
        yield


class Quantization(NamedTuple):
    """A kind of TFLite file.

    Args:
        convert: See the docstring of this module.
        tolerance: The allowed differences of its outputs from the model's.
        needs_calibration: Whether its ranges are measured on images.
        packages: Modules that it needs in addition to those of the format.
    """

    convert: Callable
    tolerance: Tolerance
    needs_calibration: bool = False
    packages: tuple[str, ...] = ()


QUANTIZATIONS = {
    "float32": Quantization(to_float32, FLOAT32),
    "float16": Quantization(to_float16, Tolerance(cosine=0.9999)),
    "dynamic_int8": Quantization(
        to_dynamic_int8, Tolerance(cosine=0.999, top1_agreement=0.99)
    ),
    "int8": Quantization(
        to_int8,
        Tolerance(expected_top1_agreement=0.95),
        needs_calibration=True,
    ),
    "static_int8": Quantization(
        to_static_int8,
        Tolerance(expected_top1_agreement=0.95),
        needs_calibration=True,
        packages=("ai_edge_quantizer",),
    ),
}
