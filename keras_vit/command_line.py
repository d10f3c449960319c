"""The command lines of `keras_vit`, and how every command starts.

Nothing here imports Keras, so that --help and a mistyped argument are answered
at once. A program that imports the package as a library does not call it.
"""

import argparse
import contextlib
import gc
import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

from keras_vit.errors import message_of
from keras_vit.tables import guess

# Lines that TensorFlow writes to the standard error at each start, on a machine
# without a GPU, before its own settings about logging apply.
NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|I\d{4} "
    rb"|To enable the following instructions"
    rb"|E\d{4} .*cuInit.*(UNKNOWN ERROR|CUDA_ERROR_NO_DEVICE)"
)

IS_LOUD = "TF_CPP_MIN_LOG_LEVEL" in os.environ  # The user wants to see all.


def start():
    """Make Ctrl-C and warnings of this process one line each."""
    sys.excepthook = _report_error
    warnings.formatwarning = format_warning


def begin(make_parser: Callable[[], argparse.ArgumentParser]):
    """Answer --help and a mistyped argument, or import Keras."""
    start()
    make_parser().parse_args()
    import_keras()


def import_keras() -> str:
    """Import Keras without noise, and return the name of its backend.

    Exits with a one-line message if there is no such backend, or it is not
    installed. To see every message of TensorFlow, set TF_CPP_MIN_LOG_LEVEL.
    """
    # To go through what is imported takes the garbage collector a third of the
    # time of a command that does nothing else.
    gc.disable()
    with _without_noise():
        try:
            import keras
        except (ModuleNotFoundError, ValueError) as error:
            sys.exit(
                f"Error: Keras cannot start ({error}). Install its backend, or "
                "choose another one: KERAS_BACKEND=tensorflow, jax or torch."
            )
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()
    gc.freeze()
    gc.enable()
    return keras.backend.backend()


def import_tensorflow():
    """Import TensorFlow without noise, if it is installed."""
    with _without_noise(), contextlib.suppress(ImportError):
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Leave NOISE out of the standard error, also where C++ writes it."""
    if IS_LOUD:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # Errors alone.
    with tempfile.TemporaryFile() as written:
        stderr = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if not NOISE.match(line):
                    os.write(2, line)


def run_command(work: Callable[[], None]) -> int:
    """Do the work of a command; return its exit status.

    What is wrong is one line on the standard error, and so is Ctrl-C.
    """
    try:
        work()
    except (ValueError, OSError, ImportError, MemoryError) as error:
        print(f"Error: {message_of(error)}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr, flush=True)
        return 130
    return 0


def _report_error(kind, error, traceback):
    """Print an error that ends the program; Ctrl-C without its traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, traceback)


def format_warning(message, category, filename, lineno, line=None) -> str:
    """Return a warning for the user as one line, without the place in the code.

    Others are shown as Python does.
    """
    if category is UserWarning:
        return f"Warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


class CommandLine(argparse.ArgumentParser):
    """A parser that suggests a known flag or value in place of an unknown one.

    Arguments are those of `argparse.ArgumentParser`.
    """

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
        prog="keras-vit convert",
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
        prog="keras-vit inspect-model",
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
        prog="keras-vit inspect-checkpoint",
        description="Describe a checkpoint of a Vision Transformer.",
    )
    parser.add_argument(
        "path",
        help="a .npz, .safetensors, .h5 or .msgpack file, a folder as Hugging "
        "Face, timm or keras-hub write it, or the name of a pretrained model",
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
        prog="keras-vit serve",
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
    for name, default, text in (
        ("--max_batch_size", 32, "instances computed at a time"),
        ("--max_body_bytes", 32 * 2**20, "bytes of a request; else 413"),
        ("--max_pixels", 70_000_000, "pixels of its image files; else 400"),
    ):
        text = f"{text} (default: %(default)s)"
        add(name, type=parse_count, default=default, metavar="N", help=text)
    kinds = ["none", "text", "json"]
    text = "a line a request on the standard output (default: %(default)s)"
    add("--access_log", choices=kinds, default="none", help=text)
    return parser


def parse_count(text: str) -> int:
    """Return a number of things, 1 or more.

    Raises:
        argparse.ArgumentTypeError: If it is not one.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


def parse_port(text: str) -> int:
    """Return the number of a port.

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
    """Add the flags for properties that a checkpoint may not state."""
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
    """Return the values of the flags of `add_hints`, by name."""
    names = ("num_heads", "source_image_size", "architecture")
    return {name: getattr(options, name) for name in names}


def parse_image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of "224" or "224x160".

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
# The families that can be written, as in `keras_vit.weights.write`.
LAYOUT_TITLES = {
    "official": "the official Flax code (google-research/vision_transformer)",
    "big_vision": "google-research/big_vision",
    "timm": "timm (huggingface/pytorch-image-models)",
    "huggingface": "Hugging Face transformers",
}
