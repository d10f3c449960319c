"""The command `keras-vit`: a shorter name for each `python -m` command."""

import runpy
import sys

from keras_vit.tables import guess
from keras_vit.version import find_versions

# The modules of the commands, and what they do.
COMMANDS = {
    "inspect-data": (
        "trainers.inspect_data",
        "Check the images of a data set, and show them on a page.",
    ),
    "train": ("trainers.train", "Train or fine-tune a model."),
    "sweep": (
        "trainers.sweep",
        "Choose a learning rate, and train with several seeds.",
    ),
    "vtab": (
        "trainers.vtab",
        "Measure a pre-trained model on the 19 tasks of VTAB.",
    ),
    "evaluate": ("trainers.evaluate", "Evaluate a model on a data set."),
    "calibrate": (
        "trainers.calibrate",
        "Make probabilities honest, and unknown images known as such.",
    ),
    "probe": ("trainers.probe", "Evaluate the features of a model."),
    "embed": ("trainers.embed", "Write the vectors of images to a folder."),
    "similar": (
        "trainers.similar",
        "Find images like a photo, or near duplicates, among embeddings.",
    ),
    "check-labels": (
        "trainers.check_labels",
        "Find labels that are probably wrong, by embeddings.",
    ),
    "map": ("trainers.map", "Show the images of embeddings as a map."),
    "predict": ("trainers.predict", "Predict the classes of image files."),
    "inspect": ("trainers.inspect", "Show where the model of a run looks."),
    "inspect-model": (
        "keras_vit.inspect",
        "Show where the model of a checkpoint looks.",
    ),
    "inspect-checkpoint": (
        "keras_vit.inspect_checkpoint",
        "Show what a checkpoint contains.",
    ),
    "convert": ("keras_vit.convert", "Convert a checkpoint."),
    "export": (
        "trainers.export_model",
        "Export a model for servers, phones and browsers.",
    ),
    "serve": ("keras_vit.serve", "Serve an exported model on this machine."),
    "serve-check": (
        "trainers.serve_check",
        "Compare the answers of a server with those of the export.",
    ),
}


def main():
    """Run the command that the first argument names, with the others."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "help" and arguments:  # As git has it.
        name, *arguments = *arguments, "--help"
    if name in ("-h", "--help", "help"):
        print("Usage: keras-vit COMMAND [ARGUMENTS]\n")
        for command, (_, purpose) in COMMANDS.items():
            print(f"  {command:<20}{purpose}")
        print(
            "\nkeras-vit COMMAND --help describes the arguments of a command."
        )
        return
    if name == "--version":
        versions = find_versions()
        print(f"keras_vit {versions.pop('keras_vit')}")
        for package, version in versions.items():
            print(f"{package} {version}")
        return
    if name not in COMMANDS:
        sys.exit(
            f"Error: the command must be one of {', '.join(COMMANDS)}. "
            f"Received: {name}{guess(name, COMMANDS)}"
        )
    # In this process: another would find modules of the working directory.
    sys.argv[1:] = arguments
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
