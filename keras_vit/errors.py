"""What the errors of other libraries mean, and which packages are missing."""

import importlib
import types
from collections.abc import Iterable


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or its type if it has none.

    Example:
        >>> from keras_vit.errors import first_line
        >>> first_line(OSError("disk full\n in line 7")), first_line(OSError())
        ('disk full', 'OSError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def message_of(error: Exception) -> str:
    """Return the message of an error; of the system's, the path and the reason.

    Example:
        >>> from keras_vit.errors import message_of
        >>> message_of(FileNotFoundError(2, "No such file", "a.png"))
        'a.png: No such file'
        >>> message_of(OSError(28, "No space left"))
        'No space left'
    """
    if not (isinstance(error, OSError) and str(error).startswith("[Errno")):
        return str(error)
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}"


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python or a backend is that of full memory.

    PyTorch raises a RuntimeError, which only its message tells from others.

    Example:
        >>> from keras_vit.errors import is_out_of_memory
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(OSError("full"))
        (True, False)
    """
    text = f"{type(error).__name__} {error}".lower().replace("_", "")
    signs = ("resourceexhausted", "out of memory", "t allocate memory")
    return isinstance(error, MemoryError) or any(x in text for x in signs)


def missing_packages(
    purpose: str, modules: Iterable[str]
) -> ModuleNotFoundError:
    """Return the error for packages that are not installed.

    Example:
        >>> print(missing_packages("This client", ["grpc", "urllib3"]))
        This client needs grpcio, urllib3: pip install grpcio urllib3
    """
    names = [PYPI_NAMES.get(module, module) for module in modules]
    return ModuleNotFoundError(
        f"{purpose} needs {', '.join(names)}: pip install {' '.join(names)}"
    )


def import_packages(
    purpose: str, modules: Iterable[str]
) -> list[types.ModuleType]:
    """Return the modules, or raise the error for those that are missing.

    Raises:
        ImportError: If one is missing, or is there and cannot be imported.
    """
    found, missing, cause = [], [], None
    for module in modules:
        try:
            found.append(importlib.import_module(module))
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # It is there, and lacks another one.
            missing.append(module)
            cause = cause or error
    if missing:
        raise missing_packages(purpose, missing) from cause
    return found


# Where the name on PyPI differs from the import.
PYPI_NAMES = {
    "PIL": "Pillow",
    "ai_edge_litert": "ai-edge-litert",
    "ai_edge_quantizer": "ai-edge-quantizer",
    "google": "protobuf",
    "grpc": "grpcio",
    "umap": "umap-learn",
    "tensorflow_serving": "tensorflow-serving-api",
}
