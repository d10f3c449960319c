"""Serve an export: `python -m keras_vit.serve EXPORT_DIR --port=8501`.

A small server for one machine, with the REST interface of TF Serving and a
page to try the model. For production, use TF Serving.
"""

import argparse
import importlib.util
import logging
import pathlib
import socket
import sys
from collections.abc import Callable, Iterable

from keras_vit.packages import missing_packages
from keras_vit.serving.server.finding import SERVED_FORMATS, find_models
from keras_vit.serving.server.refusals import Limits

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SERVER_MODULES = ("starlette", "uvicorn", "PIL")
PURPOSE = (
    "This server is for trying a model and for small tasks on one machine. In "
    "production, use TF Serving: https://www.tensorflow.org/tfx/guide/serving"
)


def serve(options: argparse.Namespace):
    """Serve the models of an export until a signal ends the server.

    Args:
        options: The parsed command line.

    Raises:
        ValueError: If there is no model, or no version can be loaded.
        ModuleNotFoundError: If a package is missing.
        OSError: If the address is in use.
    """
    missing = [m for m in SERVER_MODULES if not importlib.util.find_spec(m)]
    if missing:
        raise missing_packages("The server", missing)
    limits = Limits(
        **{name: getattr(options, name) for name in Limits.__dataclass_fields__}
    )
    folders = find_models(pathlib.Path(options.export), options.format)

    from keras_vit.serving.server.guard import LOOPBACK_NAMES
    from keras_vit.serving.server.running import ModelServer, listen
    from keras_vit.serving.server.versions import ServedModel

    # Before loading: a port in use is found at once.
    listener = listen(options.host, options.port)
    with listener:
        announce_line(PURPOSE)
        models = {}
        for name, folder in folders.items():
            models[name] = ServedModel(name, folder, options.num_versions)
            models[name].poll()
            if not models[name].is_available:
                raise ValueError(f"No version of {name} could be loaded")
        is_loopback = options.host in LOOPBACK
        if not is_loopback:
            announce_line(
                f"Warning: --host={options.host} lets other machines send "
                "requests. There is no encryption and no password."
            )
        names = (*LOOPBACK_NAMES, *options.allow_host)
        server = ModelServer(models, names, not is_loopback, limits)
        announce_addresses(listener, models)
        server.run(listener)
    announce_line("Stopped.")


def announce_addresses(listener: socket.socket, models: Iterable[str]):
    """Print the addresses of the page and of the models."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    announce_line(f"Page: http://{host}:{port}/")
    for name in models:
        announce_line(f"REST: http://{host}:{port}/v1/models/{name}:predict")


def announce_line(text: str):
    """Print a line to the standard error."""
    print(text, file=sys.stderr, flush=True)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.serve",
        description="Serve the models of an export over the REST interface of "
        f"TF Serving, with a page to try them. {PURPOSE}",
    )
    add = parser.add_argument
    add(
        "export",
        metavar="EXPORT_DIR",
        help="the folder of an export, of a run that has one, or of a model",
    )
    add(
        "--port",
        type=int,
        default=8501,
        help="0 for any free one (default: %(default)s)",
    )
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen at; others than this machine's own let other "
        "machines send requests (default: %(default)s)",
    )
    add_choices(add)
    add_limits(parser.add_argument_group("limits").add_argument)
    return parser


def add_choices(add: Callable):
    """Add the flags of what to serve, and for whom.

    Args:
        add: `add_argument` of a parser.
    """
    add(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name that requests may use; may be repeated",
    )
    add(
        "--format",
        choices=SERVED_FORMATS,
        help="which to serve (default: the first of these in the export)",
    )
    add(
        "--num_versions",
        type=int,
        default=1,
        metavar="N",
        help="how many versions to serve, the newest ones (default: 1)",
    )


def add_limits(add: Callable):
    """Add the flags of the limits.

    Args:
        add: `add_argument` of a parser.
    """
    for name, (kind, text) in LIMIT_HELP.items():
        add(
            f"--{name}",
            type=kind,
            default=getattr(Limits, name),
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: The arguments; default is the command line of this process.
    """
    options = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("keras_vit").setLevel(logging.INFO)
    try:
        serve(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # While loading.
        print("Stopped.", file=sys.stderr)
        return 130
    return 0


LIMIT_HELP = {
    "max_batch_size": (int, "instances that are computed at a time"),
    "max_waiting": (int, "requests in progress; more are answered 503"),
    "max_body_bytes": (int, "bytes of a request"),
    "max_instances": (int, "instances in a request"),
    "max_pixels": (int, "pixels of the image files in a request"),
    "timeout": (float, "seconds to wait for an answer, then 504"),
    "receive_timeout": (float, "seconds for a request to arrive, then 408"),
}


if __name__ == "__main__":
    sys.exit(main())
