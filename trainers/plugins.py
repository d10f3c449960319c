"""Plug-ins: Python modules that add rows to the tables of the trainers.

A plug-in has any of the names of `trainers.commands.TABLES`, such as RECIPES or
METRICS, with rows of its own. Installed packages name theirs as entry points
of the group GROUP; others are named by the flag --plugins.
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

GROUP = "keras_vit.plugins"
LOADED: list[str] = []  # As they are named by --plugins, or as entry points.
# Each takes a Trainer and returns a Keras callback.
CALLBACKS: list[Callable] = []
# By name, functions of labels and logits (B, C) that return numbers (B,), whose
# mean over the images an evaluation reports.
METRICS: dict[str, Callable] = {}
# What evaluations measure anyhow.
MEASURED = (
    *("loss", "accuracy", "balanced_accuracy", "top5_accuracy"),
    *("mean_average_precision", "learning_rate", "step"),
)


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of the installed plug-ins, by name."""
    return {x.name: x for x in importlib.metadata.entry_points(group=GROUP)}


def load(names: Sequence[str], tables: Mapping[str, dict | list]):
    """Load the installed plug-ins and those named here, each only once.

    Args:
        names: Modules that can be imported, or paths of .py files.
        tables: The tables to add their rows to, by the name in a plug-in.

    Raises:
        ValueError: If there is no such module, it has none of the tables or
            one whose name is misspelled, or a row has a name that exists.
        RuntimeError: If the code of the module fails.
    """
    for name, point in entry_points().items():
        if name not in LOADED:
            _add_rows(name, point.load(), tables)
    for name in names:
        if name not in LOADED:
            _add_rows(name, _import(name), tables)


def _import(name):
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = pathlib.Path(name).expanduser().resolve(strict=True)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        known = sys.modules.setdefault(path.stem, module)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if known is module:
                del sys.modules[path.stem]
            raise
        return module
    except (ModuleNotFoundError, FileNotFoundError) as error:
        missing = getattr(error, "name", None)
        if missing and not f"{name}.".startswith(f"{missing}."):
            raise  # A package that the plug-in imports.
        hint = ""
        if pathlib.Path(f"{name}.py").exists():
            hint = f". Did you mean {name}.py?"
        raise ValueError(
            "`plugins` must be modules that Python can import, or .py files. "
            f"Received: plugins={name!r} ({error}){hint}"
        ) from None
    except Exception as error:
        raise RuntimeError(f"the plug-in {name!r} failed") from error


def _add_rows(name: str, module: ModuleType, tables):
    found = {key: getattr(module, key) for key in tables if key in vars(module)}
    if not found:
        raise ValueError(
            f"`plugins` must define any of {', '.join(tables)}. "
            f"Received: plugins={name!r}, which defines none of them"
        )
    for key in vars(module).keys() - tables.keys():
        # OPTIONS is no misspelt OPERATIONS, METRIC is.
        close = difflib.get_close_matches(key, tables, 1, 0.85)
        if close and isinstance(getattr(module, key), dict | list):
            raise ValueError(
                f"`plugins`: {key} of {name!r} is no table. Did you mean "
                f"{close[0]}?"
            )
    for key, rows in found.items():
        kind = type(tables[key])
        if not isinstance(rows, kind):
            raise ValueError(
                f"{key} of the plug-in {name!r} must be a {kind.__name__}. "
                f"Received: {rows!r}"
            )
        functions = rows if isinstance(rows, list) else rows.values()
        if key != "RECIPES" and not all(map(callable, functions)):
            raise ValueError(
                f"{key} of the plug-in {name!r} must be functions; of "
                "CALLBACKS, those that take a Trainer and return a callback. "
                f"Received: {rows!r}"
            )
        known = [row for row in rows if row in tables[key]]
        if key == "METRICS":
            known += [row for row in rows if row in MEASURED]
        if known:
            raise ValueError(
                f"{key} of the plug-in {name!r} must have new names. "
                f"Received: {', '.join(map(repr, known))}"
            )
    for key, rows in found.items():
        table = tables[key]
        table.extend(rows) if isinstance(table, list) else table.update(rows)
    LOADED.append(name)
