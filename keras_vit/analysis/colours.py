"""The colours of classes and of numbers, the same on all pages."""

import importlib.resources
import json

_FILE = importlib.resources.files("keras_vit") / "data/web/colours.json"
_COLOURS = json.loads(_FILE.read_text(encoding="utf-8"))
# "#rrggbb" of 256 classes. Each is as far as possible in CIELAB from all
# before it, so the first ones differ most; none is grey, or nearly black or
# white. Further classes begin again.
CLASS_COLOURS = tuple(_COLOURS["classes"])
# Evenly spaced from low to high: matplotlib's "viridis" (CC0), whose equal
# steps look equally far apart, to the colour-blind as well.
NUMBER_COLOURS = tuple(_COLOURS["numbers"])
