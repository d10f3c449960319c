"""LAYOUTS: the families of checkpoints, each in the file of its name."""

import importlib
import pkgutil


def _find_layouts():
    found = {
        info.name: importlib.import_module(f"{__name__}.{info.name}").LAYOUT
        for info in pkgutil.iter_modules(__path__)
    }
    return dict(sorted(found.items(), key=lambda row: (row[1].order, row[0])))


LAYOUTS = _find_layouts()
