"""Export of trained models, with a check against the original model."""

from keras_vit.export.agreement import (
    Agreement,
    DisagreementError,
    Tolerance,
)
from keras_vit.export.bundle import (
    ExportReport,
    export_file,
    export_model,
    read_class_names,
    read_description,
)
from keras_vit.export.contract import (
    ExportOptions,
    Format,
    Serving,
)
from keras_vit.export.formats import FORMATS
from keras_vit.export.formats.tflite import QUANTIZATIONS
from keras_vit.export.latency import Latency, measure_latency
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, OUTPUTS

__all__ = [
    "CLASSIFIER_ACTIVATIONS",
    "FORMATS",
    "OUTPUTS",
    "QUANTIZATIONS",
    "Agreement",
    "DisagreementError",
    "ExportOptions",
    "ExportReport",
    "Format",
    "Latency",
    "Serving",
    "Tolerance",
    "export_file",
    "export_model",
    "measure_latency",
    "read_description",
    "read_class_names",
]
