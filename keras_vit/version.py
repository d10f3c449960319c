"""The version number, and the versions of what the package runs on."""

import importlib.metadata
import platform

__version__ = "0.2.0"
# Backends and what else decides what a model computes, by the names of pip.
PACKAGES = ("keras", "tensorflow", "jax", "torch", "numpy")


def find_versions() -> dict[str, str]:
    """Return the versions of this package and those of PACKAGES, by name.

    Nothing is imported; what is not installed is left out.
    """
    found = {"keras_vit": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found
