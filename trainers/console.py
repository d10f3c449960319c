"""The command `keras-vit`: a shorter name for each `python -m` command.

It imports nothing that needs Keras, which would take seconds.
"""

import os
import sys
from importlib.metadata import version

from trainers.help.commands import COMMANDS
from trainers.help.reading import propose
from trainers.help.showing import answer_early, print_page


def main():
    """Run the command that the first argument names, with the others."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "help" and arguments:  # As git has it.
        name, *arguments = *arguments, "--help"
    if name in ("-h", "--help", "help"):
        print_page(describe_commands())
        return
    if name == "--version":
        print(f"keras_vit {version('keras-vision-transformer')}")
        return
    if name not in COMMANDS:
        sys.exit(
            f"Error: the command must be one of {', '.join(COMMANDS)}. "
            f"Received: {name}{propose(name, COMMANDS)}"
        )
    module = COMMANDS[name].module
    answer_early(module, arguments)
    words = [sys.executable, "-m", module, *arguments]
    # The package has set it already, and would take it for the user's.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "2":
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    # PROGRAM_VARIABLE of `keras_vit.command_lines`.
    os.environ["KERAS_VIT_PROGRAM"] = f"keras-vit {name}"
    # Signals and the exit code are those of the command itself.
    os.execv(sys.executable, words)


def describe_commands() -> str:
    """Return a line for each command."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:<{width}}  {row.purpose}" for name, row in COMMANDS.items()
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
