"""The Vision Transformer (Dosovitskiy et al. 2021) for Keras 3.

Keras takes seconds to import, so a name below is imported when it is used, and
the classes of models when the program imports Keras. The commands answer
`--help` without either.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from keras_vit.version import __version__

if TYPE_CHECKING:
    from keras_vit import (
        analysis,
        applications,
        distribution,
        layers,
        models,
        preprocessing,
        pretraining,
        weights,
    )
    from keras_vit import export as export
    from keras_vit import serving as serving
    from keras_vit.applications import (
        R26_ViT_B32,
        R26_ViT_S32,
        R50_ViT_B16,
        R50_ViT_B32,
        R50_ViT_L16,
        R50_ViT_L32,
        R_ViT_Ti16,
        ViT_B8,
        ViT_B16,
        ViT_B32,
        ViT_G14,
        ViT_g14,
        ViT_H14,
        ViT_L16,
        ViT_L32,
        ViT_M16,
        ViT_S16,
        ViT_S32,
        ViT_So400m14,
        ViT_Ti16,
    )
    from keras_vit.layer_decay import layer_decay_optimizer
    from keras_vit.models import (
        VARIANTS,
        FlexibleVisionTransformer,
        VisionTransformer,
        ViTConfig,
        preprocess_patches,
    )
    from keras_vit.preprocessing import (
        Preprocessing,
        decode_predictions,
        preprocess_input,
        read_image,
    )
    from keras_vit.texts import TextEncoder, load_text_encoder, zero_shot
    from keras_vit.weights import (
        HUB_MODELS,
        PRETRAINED,
        from_checkpoint,
        load_checkpoint,
        load_lora,
        save_checkpoint,
        save_lora,
    )

__all__ = [
    "HUB_MODELS",
    "PRETRAINED",
    "VARIANTS",
    "FlexibleVisionTransformer",
    "Preprocessing",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "TextEncoder",
    "ViTConfig",
    "ViT_B8",
    "ViT_B16",
    "ViT_B32",
    "ViT_G14",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_M16",
    "ViT_S16",
    "ViT_S32",
    "ViT_So400m14",
    "ViT_Ti16",
    "ViT_g14",
    "VisionTransformer",
    "__version__",
    "analysis",
    "applications",
    "decode_predictions",
    "distribution",
    "from_checkpoint",
    "layer_decay_optimizer",
    "layers",
    "load_checkpoint",
    "load_lora",
    "load_text_encoder",
    "models",
    "preprocess_input",
    "preprocess_patches",
    "preprocessing",
    "pretraining",
    "read_image",
    "save_checkpoint",
    "save_lora",
    "weights",
    "zero_shot",
]

# Where names are defined, each in the first of these modules that has it. What
# few need is last: each is imported until the name is found.
_HOMES = (
    *("models", "preprocessing", "layer_decay", "weights", "applications"),
    "texts",
)
# What the files of our models need, and what else needs Keras.
_CLASSES = ("layers", "models", "pretraining", "layer_decay")
_NEED_KERAS = (
    *("analysis", "applications", "distribution", "export", "preprocessing"),
    *("weights", *_CLASSES),
)
_SUBMODULES = (*_NEED_KERAS, "serving")


def _register_classes():
    for name in _CLASSES:
        importlib.import_module(f"{__name__}.{name}")


class _AfterKeras:
    """Registers our classes right after Keras, which then can load models.

    If it is one of ours that imports Keras, right after that one.
    """

    names = ("keras", *(f"{__name__}.{name}" for name in _NEED_KERAS))
    depth = 0  # Imports of `names` that have begun, one within another.

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        others = (x for x in sys.meta_path if x is not self)
        found = (other.find_spec(name, path, target) for other in others)
        spec = next(filter(None, found), None)
        if spec and spec.loader:
            exec_module = spec.loader.exec_module

            def exec_both(module):
                self.depth += 1
                try:
                    exec_module(module)
                finally:
                    self.depth -= 1
                if self.depth == 0 and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _register_classes()

            spec.loader.exec_module = exec_both
        return spec


if "keras" in sys.modules:
    _register_classes()
else:
    sys.meta_path.insert(0, _AfterKeras())

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _SUBMODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in __all__:
            for home in _HOMES:
                module = importlib.import_module(f"{__name__}.{home}")
                if hasattr(module, name):
                    return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_SUBMODULES, *__all__})
