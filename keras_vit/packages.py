"""Errors that say which packages to install."""

from collections.abc import Iterable


def missing_packages(
    purpose: str, modules: Iterable[str]
) -> ModuleNotFoundError:
    """Return the error for packages that are not installed.

    Args:
        purpose: What needs them; begins the message.
        modules: Their import names.

    Example:
        >>> print(missing_packages("This client", ["grpc", "urllib3"]))
        This client needs grpcio, urllib3: pip install grpcio urllib3
    """
    names = [PYPI_NAMES.get(module, module) for module in modules]
    return ModuleNotFoundError(
        f"{purpose} needs {', '.join(names)}: pip install {' '.join(names)}"
    )


# Where the name on PyPI differs from the import.
PYPI_NAMES = {
    "PIL": "Pillow",
    "ai_edge_litert": "ai-edge-litert",
    "ai_edge_quantizer": "ai-edge-quantizer",
    "google": "protobuf",
    "grpc": "grpcio",
    "tensorflow_serving": "tensorflow-serving-api",
}
