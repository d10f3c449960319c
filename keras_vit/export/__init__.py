"""Export of a trained model, checked against the model it came from."""

from keras_vit.export.agreement import (
    Agreement,
    DisagreementError,
    Tolerance,
)
from keras_vit.export.bundle import FORMATS, export_model
from keras_vit.export.forward import OUTPUTS
from keras_vit.export.latency import Latency, measure_latency
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.report import ExportReport
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.signatures import ACTIVATIONS, Serving
from keras_vit.export.tflite import export_tflite

__all__ = [
    "ACTIVATIONS",
    "FORMATS",
    "OUTPUTS",
    "Agreement",
    "DisagreementError",
    "ExportReport",
    "Latency",
    "Serving",
    "Tolerance",
    "export_model",
    "export_onnx",
    "export_openvino",
    "export_saved_model",
    "export_tflite",
    "measure_latency",
]
