"""The command `keras-vit`: a shorter name for each `python -m` command.

It imports nothing of the package, which would take seconds.
"""

import os
import sys


def main():
    """Run the command that the first argument names, with the others."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(describe_commands())
        return
    if name not in COMMANDS:
        sys.exit(
            f"Error: the command must be one of {', '.join(COMMANDS)}. "
            f"Received: {name}"
        )
    module, _ = COMMANDS[name]
    words = [sys.executable, "-m", module, *arguments]
    # The package has set it already, and would take it for the user's.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "2":
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    # Signals and the exit code are those of the command itself.
    os.execv(sys.executable, words)


def describe_commands() -> str:
    """Return a line for each command."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()
    ]
    return "\n".join(
        [
            "Usage: keras-vit COMMAND [ARGUMENTS]",
            "",
            *lines,
            "",
            "keras-vit COMMAND --help describes the arguments of a command.",
        ]
    )


# Name: module, what it does.
COMMANDS = {
    "inspect-data": (
        "trainers.inspect_data",
        "Check the images of a data set, and show them on a page.",
    ),
    "train": ("trainers.train", "Train or fine-tune a model."),
    "evaluate": ("trainers.evaluate", "Evaluate a model on a data set."),
    "probe": ("trainers.probe", "Evaluate the features of a model."),
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
