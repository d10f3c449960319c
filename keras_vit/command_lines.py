"""The parsers of commands such as `python -m keras_vit.convert`.

They are parsed twice: by `startup`, so that a mistyped flag is reported before
Keras is imported, which takes seconds, and by the command itself.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable

from keras_vit.tables import guess

# Set by `keras-vit`, which starts these modules: the command as it was typed.
PROGRAM_VARIABLE = "KERAS_VIT_PROGRAM"


class CommandLine(argparse.ArgumentParser):
    """A parser that suggests a known flag or value in place of an unknown one.

    Further arguments are those of `argparse.ArgumentParser`.

    Args:
        module: The module of the command. In messages, the program has the
            name by which it was started.
    """

    def __init__(self, module: str, **options):
        program = os.environ.get(PROGRAM_VARIABLE, f"python -m {module}")
        super().__init__(prog=program, **options)

    def parse_args(self, args=None, namespace=None) -> argparse.Namespace:
        """Return the values of the command line; exit if it is wrong."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            known = self._option_string_actions
            self.error(
                f"there is no argument {' '.join(unknown)}{guess(flag, known)}"
            )
        return options

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += guess(value, action.choices)
            raise


def make_convert_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m keras_vit.convert`."""
    titles = [f"{name}: {title}" for name, title in LAYOUT_TITLES.items()]
    parser = CommandLine(
        "keras_vit.convert",
        description="Convert the checkpoint of a Vision Transformer to the "
        "format of another library.",
        epilog=f"Layouts: {'; '.join(titles)}; keras: a .keras file.",
    )
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a checkpoint of any family, a .keras file of this package, the "
        "folder of a run, or the name of a pretrained model",
    )
    parser.add_argument(
        "target", metavar="DST", help="the file or folder to write"
    )
    parser.add_argument(
        "--layout",
        required=True,
        choices=[*LAYOUT_TITLES, "keras"],
        help="format to write",
    )
    _add_image_size(parser)
    parser.add_argument(
        "--layer_norm_epsilon",
        type=float,
        metavar="EPSILON",
        help="write the model with another epsilon of its layer norms, if the "
        "other library cannot have that of the source; outputs differ slightly",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace DST, or files in it, if it is there",
    )
    add_hints(parser)
    return parser


def make_inspect_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m keras_vit.inspect`."""
    parser = CommandLine(
        "keras_vit.inspect",
        description="Draw where a Vision Transformer looks in images and what "
        "it has learned, and write an interactive page, report.html. For the "
        "folder of a run, use keras-vit inspect.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras file, a checkpoint of any family, or the name of a "
        "pretrained model",
    )
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="image files"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to write to")
    parser.add_argument(
        "--compare",
        metavar="MODEL",
        help="a second model, shown beside the first",
    )
    parser.add_argument(
        "--format",
        choices=["png", "svg"],
        default="png",
        help="format of the pictures (default: %(default)s)",
    )
    _add_image_size(parser)
    add_hints(parser)
    return parser


def make_inspect_checkpoint_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m keras_vit.inspect_checkpoint`."""
    parser = CommandLine(
        "keras_vit.inspect_checkpoint",
        description="Describe a checkpoint of a Vision Transformer.",
    )
    parser.add_argument(
        "path",
        help="a .npz, .safetensors or .h5 file, a folder as Hugging Face, timm "
        "or keras-hub write it, or the name of a pretrained model",
    )
    add_hints(parser)
    parser.add_argument(
        "--brief",
        action="store_true",
        help="do not list the weights and arrays",
    )
    return parser


def make_serve_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m keras_vit.serve`."""
    parser = CommandLine(
        "keras_vit.serve",
        description="Serve the models of an export over the REST interface of "
        f"TF Serving, with a page to try them. {PURPOSE}",
    )
    add = parser.add_argument
    text = "the folder of an export, of a run or of a model"
    add("export", metavar="EXPORT_DIR", help=text)
    text = "0 for any free one (default: %(default)s)"
    add("--port", type=parse_port, default=8501, metavar="PORT", help=text)
    text = "address to listen on (default: %(default)s, for this machine alone)"
    add("--host", default="127.0.0.1", help=text)
    text = "another host name that requests may use; may be repeated"
    add("--allow_host", action="append", default=[], metavar="NAME", help=text)
    from keras_vit.serving.limits import Limits

    group = parser.add_argument_group("limits")
    for field in dataclasses.fields(Limits):
        group.add_argument(
            f"--{field.name}",
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{field.metadata['help']} (default: %(default)s)",
        )
    return parser


def parse_port(text: str) -> int:
    """Return the number of a port.

    Args:
        text: The argument as it was typed.

    Raises:
        argparse.ArgumentTypeError: If there is no such port.
    """
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(
            f"must be from 0 to 65535, not {text!r}"
        )
    return int(text)


def _add_image_size(parser):
    parser.add_argument(
        "--image_size",
        type=parse_image_size,
        metavar="SIZE",
        help="resize the position embedding to images of this size",
    )


def add_hints(parser: argparse.ArgumentParser):
    """Add the flags for properties that a checkpoint may not state.

    Args:
        parser: The parser that takes the flags.
    """
    parser.add_argument(
        "--num_heads",
        type=int,
        help="number of attention heads, if the file does not state it",
    )
    parser.add_argument(
        "--source_image_size",
        type=parse_image_size,
        metavar="SIZE",
        help="size of the images of the file in pixels, 224 or 224x160 "
        "(height x width), if the file does not state it",
    )
    parser.add_argument(
        "--architecture",
        help="name of the architecture in timm, such as "
        "vit_base_patch16_clip_224, if no config.json is beside the file",
    )


def hints_of(options: argparse.Namespace) -> dict:
    """Return the values of the flags of `add_hints`, by name.

    Args:
        options: The parsed command line.
    """
    names = ("num_heads", "source_image_size", "architecture")
    return {name: getattr(options, name) for name in names}


def parse_image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of "224" or "224x160".

    Args:
        text: The argument as it was typed.

    Raises:
        argparse.ArgumentTypeError: If it is neither.
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be a size such as 224 or 224x160, not {text!r}"
        )
    sizes = tuple(int(part) for part in parts)
    return sizes if len(sizes) == 2 else (sizes[0], sizes[0])


PURPOSE = (
    "This server is for trying a model and for small tasks on one machine. In "
    "production, use TF Serving: https://www.tensorflow.org/tfx/guide/serving"
)
# The families that can be written, as in `keras_vit.weights.saving`.
LAYOUT_TITLES = {
    "official": "the official Flax code (google-research/vision_transformer)",
    "big_vision": "google-research/big_vision",
    "timm": "timm (huggingface/pytorch-image-models)",
    "huggingface": "Hugging Face transformers",
}
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "keras_vit.convert": make_convert_parser,
    "keras_vit.inspect": make_inspect_parser,
    "keras_vit.inspect_checkpoint": make_inspect_checkpoint_parser,
    "keras_vit.serve": make_serve_parser,
}
