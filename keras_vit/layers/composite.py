"""Layers of layers: their dtypes, and what users edit on the inner layers."""

from collections.abc import Iterable

import keras
from keras.dtype_policies import DTypePolicyMap

from keras_vit.layers.dtypes import policy_at

# Entries that are kept elsewhere, or that building a layer changes.
NO_EDITS = {
    "name",
    "trainable",
    "dtype",
    "quantization_config",
    "lora_rank",
    "lora_alpha",
    "axis",
}


class Edits:
    """What users have changed on the inner layers of a layer or a model.

    Keras stores a composite layer as its arguments, so `layer.activation = f`
    or `dropout.rate = 0.2` inside of it would be lost.

    Args:
        changes: Entries of the configurations of inner layers that differ from
            those of new ones, by name, as `find` returns them.
    """

    def __init__(self, changes: dict | None = None):
        self.changes = dict(changes or {})
        self.made = {}

    def __call__(self, layer: keras.layers.Layer) -> keras.layers.Layer:
        """Return a new inner layer as the user has edited it."""
        if changes := self.changes.get(layer.name):
            config = {**layer.get_config(), **changes}
            config["dtype"] = layer.dtype_policy
            layer = type(layer).from_config(config)
        self.made[layer.name] = dict(vars(layer))
        return layer

    def find(self, layers: Iterable[keras.layers.Layer]) -> dict:
        """Return `{"edits": changes}` of these inner layers, {} for none."""
        changes = {}
        for layer in layers:
            made = self.made.get(layer.name, {})
            now = vars(layer)
            changed = {"edits", *self.changes.get(layer.name, ())}
            changed |= {k for k in made if now.get(k) is not made[k]}
            config = layer.get_config() if made else {}
            config = {k: config[k] for k in config.keys() & changed - NO_EDITS}
            if config:
                changes[layer.name] = config
        return {"edits": changes} if changes else {}


class Composite(keras.layers.Layer):
    """A layer of layers, each of which it makes by `self.inner(layer)`.

    Args:
        edits: See `Edits`.
    """

    def __init__(self, edits: dict | None = None, **kwargs):
        super().__init__(**kwargs)
        self.inner = Edits(edits)

    def inner_policy(self, name: str):
        """Return the dtype policy of an inner layer of a built layer.

        Returns the entry of that layer instead of the whole map: a Dense layer
        with a map cannot be saved again, because Keras 3.15 reads the mode of
        the map's default policy.
        """
        return policy_at(self.dtype_policy, f"{self.path}/{name}")

    def get_config(self):
        inner = self._flatten_layers(include_self=False, recursive=False)
        return {
            **super().get_config(),
            **self.inner.find(inner),
            "dtype": nested_dtype_policy(self),
        }


def nested_dtype_policy(layer) -> dict:
    """Return the `dtype` entry of the config of a composite layer or a model.

    `model.quantize(...)` gives each innermost layer its own policy. If the
    config of the composite layer did not contain these policies, reloading
    would create float kernels where the file has int8 kernels. So the config
    contains a map from the path of each quantised sublayer to its policy, or
    the plain policy if no sublayer is quantised.
    """
    default = layer.dtype_policy
    if isinstance(default, DTypePolicyMap):
        default = default.default_policy
    quantized = {
        inner.path: policy_at(inner.dtype_policy, inner.path)
        for inner in layer._flatten_layers(include_self=False)
        if inner.quantization_mode is not None
    }
    policy = DTypePolicyMap(default.name, quantized) if quantized else default
    return keras.dtype_policies.serialize(policy)
