"""COMMANDS: the modules of the command `keras-vit`."""

from typing import NamedTuple


class Command(NamedTuple):
    """A row of COMMANDS.

    Args:
        module: The module to run.
        purpose: What it does.
        arguments: Its arguments that are not flags.
    """

    module: str
    purpose: str
    arguments: str = ""


COMMANDS = {
    "inspect-data": Command(
        "trainers.inspect_data",
        "Check the images of a data set, and show them on a page.",
        "DATASET",
    ),
    "train": Command("trainers.train", "Train or fine-tune a model."),
    "sweep": Command(
        "trainers.sweep",
        "Choose a learning rate, and train with several seeds.",
    ),
    "vtab": Command(
        "trainers.vtab", "Measure a pre-trained model on the 19 tasks of VTAB."
    ),
    "evaluate": Command("trainers.evaluate", "Evaluate a model on a data set."),
    "probe": Command("trainers.probe", "Evaluate the features of a model."),
    "predict": Command(
        "trainers.predict",
        "Predict the classes of image files.",
        "IMAGE_OR_FOLDER...",
    ),
    "inspect": Command(
        "trainers.inspect",
        "Show where the model of a run looks.",
        "[IMAGE...]",
    ),
    "inspect-model": Command(
        "keras_vit.inspect",
        "Show where the model of a checkpoint looks.",
        "MODEL IMAGE...",
    ),
    "inspect-checkpoint": Command(
        "keras_vit.inspect_checkpoint",
        "Show what a checkpoint contains.",
        "PATH",
    ),
    "convert": Command("keras_vit.convert", "Convert a checkpoint.", "SRC DST"),
    "export": Command(
        "trainers.export_model",
        "Export a model for servers, phones and browsers.",
    ),
    "serve": Command(
        "keras_vit.serve",
        "Serve an exported model on this machine.",
        "EXPORT_DIR",
    ),
    "serve-check": Command(
        "trainers.serve_check",
        "Compare the answers of a server with those of the export.",
    ),
}
