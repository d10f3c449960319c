"""Serve an export: `python -m keras_vit.serve EXPORT_DIR --port=8501`.

A small server for one machine, with the REST interface of TF Serving and a
page to try the model. For production, use TF Serving.
"""

if __name__ == "__main__":  # A mistyped argument is found before slow imports.
    from keras_vit.command_line import begin, make_serve_parser

    begin(make_serve_parser)

import argparse
import logging
import pathlib
import signal
import socket
import sys

from keras_vit.command_line import PURPOSE, make_serve_parser, run_command
from keras_vit.errors import import_packages
from keras_vit.serving.models import ServedModel, find_models

SERVER_MODULES = ("starlette", "uvicorn", "PIL")


def serve(options: argparse.Namespace):
    """Serve the models of an export until a signal ends the server.

    Raises:
        ValueError: If there is no model, or no version can be loaded.
        ModuleNotFoundError: If a package is missing.
        OSError: If the address is in use.
    """
    import_packages("The server", SERVER_MODULES)
    from keras_vit.serving.server import LOOPBACK, make_server

    folders = find_models(pathlib.Path(options.export))
    # Before loading: a port in use is found at once.
    with listen(options.host, options.port) as listener:
        announce_line(PURPOSE)
        models = {}
        for name, folder in folders.items():
            models[name] = ServedModel(name, folder)
            if not models[name].served:
                raise ValueError(
                    f"The newest version of {name} could not be loaded"
                )
        if options.host not in LOOPBACK:
            announce_line(
                f"Warning: --host={options.host} lets other machines send "
                "requests. There is no encryption and no password."
            )
        host, port = listener.getsockname()[:2]
        page = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        announce_line(f"Page: {page}")
        for name in models:
            announce_line(f"REST: {page}v1/models/{name}:predict")
        # uvicorn finishes the received requests, then raises the signal again.
        make_server(models, options).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: If the port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"cannot listen on port {port} of {host}: "
            f"{error.strerror or error}; choose another with --port, 0 for any"
        ) from error
    # asyncio sends answers at once (TCP_NODELAY) only if the protocol is
    # stated; else each waits 40 ms for the client to acknowledge its head.
    return socket.socket(
        family,
        socket.SOCK_STREAM,
        socket.IPPROTO_TCP,
        fileno=listener.detach(),
    )


def announce_line(text: str):
    """Print a line to the standard error."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = make_serve_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("keras_vit").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_command(lambda: _serve_until_stopped(options))


def _serve_until_stopped(options):
    try:
        serve(options)
    except KeyboardInterrupt:
        announce_line("Stopped.")


if __name__ == "__main__":
    sys.exit(main())
