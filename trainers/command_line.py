"""The start of a command of the trainers; it imports nothing that is slow."""

import inspect
import os
import re
import sys

from absl import app, flags, logging  # noqa: F401  Two define flags.

from keras_vit.command_line import import_keras, start
from keras_vit.tables import guess
from trainers.flags import DEFINITIONS
from trainers.recipes.flags import show_values


def begin(module: str):
    """Answer --help and a mistyped flag, or import Keras on TensorFlow.

    Args:
        module: The module of the command, a key of DEFINITIONS.
    """
    start()
    DEFINITIONS[module]()
    words = sys.argv[1:]
    if {"-h", "-help", "--help", "--helpshort", "--helpfull"} & {*words}:
        if "recipe" in flags.FLAGS:
            given = [x for x in words if x.startswith("--recipe=")]
            show_values("".join(given).partition("=")[2])
        print_help(inspect.cleandoc(sys.modules["__main__"].__doc__))
        sys.exit()
    parse_flags(sys.argv)
    backend = import_keras()
    if backend not in ("tensorflow", "jax"):
        sys.exit(
            "Error: the trainers need the backend TensorFlow or JAX of Keras. "
            f"Received: KERAS_BACKEND={backend}"
        )


def parse_flags(words: list[str]) -> list[str]:
    """Parse a command line; return what is not a flag of it.

    What is wrong with it ends the command with a one-line message.

    Args:
        words: The command line.
    """
    try:
        return flags.FLAGS(words)
    except flags.UnrecognizedFlagError as error:
        proposal = guess(error.flagname, flags.FLAGS)
        sys.exit(
            f"Error: there is no flag --{error.flagname}"
            f"{proposal or '. --help lists them all.'}"
        )
    except flags.Error as error:
        text = " ".join(str(error).split())
        missing = re.match(r"flag --(\w+)=None: ", text)
        text = f"--{missing[1]} must be given" if missing else text
        sys.exit(f"Error: {text}")


def print_help(text: str):
    """Print the description of a command and its flags.

    A program such as `head` may read a part of it.
    """
    values = flags.FLAGS
    for name in values:
        if values.find_module_defining_flag(name).startswith("trainers."):
            values.register_key_flag_for_module("Flags", values[name])
    try:
        print(text, values.module_help("Flags"), sep="\n", flush=True)
    except BrokenPipeError:
        # Or Python, too, would complain when it ends and empties its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
