"""What layers share: configurations, inner layers, types of numbers."""

import dataclasses
import functools
import inspect
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from keras_vit.arguments import as_size, as_whole

# Entries that are kept elsewhere, or that building a layer changes.
NO_EDITS = {
    *("name", "trainable", "dtype", "axis"),
    *("quantization_config", "lora_rank", "lora_alpha"),
}


class Layer(keras.layers.Layer):
    """A layer with an attribute for each argument of its constructors.

    Its configuration is read from these attributes. Unless a subclass says
    something else, the output has the shape of the input.
    """

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        config = super().get_config()
        for name in argument_names(type(self)):
            value = getattr(self, name)
            config[name] = [*value] if isinstance(value, tuple) else value
        return config


@functools.cache
def argument_names(layer_class: type) -> tuple[str, ...]:
    """Return the arguments of the constructors of a class and its bases."""
    names = []
    for each in layer_class.__mro__:
        if each in (Composite, Layer):
            break
        if "__init__" in vars(each):
            parameters = inspect.signature(each.__init__).parameters.values()
            names += [p.name for p in parameters if "VAR" not in p.kind.name]
    return tuple(name for name in names if name != "self")


class GridLayer(Layer):
    """A layer of the places of patches in a grid, behind prefix tokens.

    If the image size is not known before the call, it is told by `features`,
    the images or feature maps that the patches were cut from.

    Args:
        grid_size: (h, w), rows and columns of the grid.
        num_prefix_tokens: Number of tokens before the patches.
        patch_size: Side of a patch in `features`; unused without them.
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_prefix_tokens: int = 1,
        patch_size: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.grid_size = as_size(grid_size, "grid_size")
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )
        self.patch_size = as_whole(patch_size, "patch_size")

    def grid_of(self, features) -> tuple:
        """Return (h, w) of `features` (B, H, W, C), or its own for None."""
        if features is None:
            return self.grid_size
        return tuple(n // self.patch_size for n in ops.shape(features)[1:3])


@dataclasses.dataclass(eq=False)
class InnerLayers:
    """Makes the inner layers of a layer or a model, as users have edited them.

    Keras stores a composite layer as its arguments, so `layer.activation = f`
    or `dropout.rate = 0.2` inside of it would be lost.

    Args:
        policy: Dtype policy of the inner layers.
        edits: Entries of the configurations of inner layers that differ from
            those of new ones, by name, as `find_edits` returns them.
        owner: The composite layer, None for a model.
        made: The attributes of the layers when they were made.
    """

    policy: object
    edits: dict = dataclasses.field(default_factory=dict)
    owner: keras.layers.Layer | None = None
    made: dict = dataclasses.field(default_factory=dict)

    def __call__(self, layer_class, name: str, *arguments, **options):
        """Return a new inner layer of this class and name."""
        policy = self.policy
        if self.owner is not None and self.owner.path:
            # It is being built. A Dense layer with a map of policies could not
            # be saved again: Keras 3.15 reads the mode of the default policy.
            policy = policy_at(policy, f"{self.owner.path}/{name}")
        options = {"dtype": policy, "name": name, **options}
        layer = layer_class(*arguments, **options)
        if edits := self.edits.get(name):
            config = {**layer.get_config(), **edits}
            config["dtype"] = layer.dtype_policy
            layer = type(layer).from_config(config)
        self.made[name] = dict(vars(layer))
        return layer

    def find_edits(self, layers: Iterable[keras.layers.Layer]) -> dict:
        """Return `{"edits": edits}` of these inner layers, {} for none.

        Raises:
            ValueError: If no new layer could have them.
        """
        edits = {}
        for layer in layers:
            made = self.made.get(layer.name, {})
            now = vars(layer)
            changed = {"edits", *self.edits.get(layer.name, ())}
            set_later = {k for k in made if now.get(k) is not made[k]}
            changed |= set_later - {*getattr(layer, "handed_down", ())}
            config = layer.get_config() if made else {}
            config = {k: config[k] for k in config.keys() & changed - NO_EDITS}
            if config:
                # Layers of Keras may have functions of the user.
                if isinstance(layer, Layer):
                    _check_edited(layer)
                edits[layer.name] = config
        return {"edits": edits} if edits else {}


def _check_edited(layer):
    """Raise a ValueError if a file of the layer could not be read again."""
    try:
        type(layer).from_config(layer.get_config())
    except (TypeError, ValueError) as error:
        # Of Keras' message, without the whole configuration.
        reason = str(error).rpartition("Exception encountered: ")[2]
        raise ValueError(
            f"{layer.path or layer.name} has an attribute that no new layer "
            f"takes: {reason}"
        ) from error


class Composite(Layer):
    """A layer of layers, which it makes by `self.inner(...)`.

    Args:
        edits: See `InnerLayers`.
    """

    # Arguments that inner layers are made with. Set later on this layer, they
    # change nothing of it, so they are no edits.
    handed_down: tuple[str, ...] = ()

    def __init__(self, edits: dict | None = None, **kwargs):
        super().__init__(**kwargs)
        self.inner = InnerLayers(self.dtype_policy, edits or {}, owner=self)

    def get_config(self):
        inner = self._flatten_layers(include_self=False, recursive=False)
        return {
            **super().get_config(),
            **self.inner.find_edits(inner),
            "dtype": nested_dtype_policy(self),
        }


def nested_dtype_policy(layer) -> dict:
    """Return the `dtype` entry of the config of a composite layer or a model.

    `model.quantize(...)` gives each innermost layer its own policy. Without
    these policies in the configuration, reloading would create float kernels
    where the file has int8 kernels. So it is a map from the paths of quantised
    sublayers to their policies, or the plain policy if there are none.
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


def policy_at(policy, path: str):
    """Return the entry of `policy` for the layer at `path`."""
    return policy[path] if isinstance(policy, DTypePolicyMap) else policy


def wide_policy_at(policy, path: str):
    """Return the entry of `policy` for the last layer of a model.

    Under mixed precision it computes in float32, so that the softmax of a loss
    or of a serving client has full precision.
    """
    found = policy_at(policy, path)
    if getattr(found, "quantization_mode", None) is not None:
        return found
    return wide(keras.dtype_policies.get(found).compute_dtype)


def is_quantized(model) -> bool:
    """Return whether any layer of `model` was quantised by Keras."""
    return any(layer.quantization_mode for layer in model._flatten_layers())


def refuse_quantized(model, advice: str):
    """Raise a ValueError with advice if `model` was quantised by Keras."""
    if is_quantized(model):
        raise ValueError(
            f"`model` is quantised; {advice}. Received: model={model.name!r}"
        )


def wide(dtype) -> str:
    """Return the type in which sums of numbers of a type are computed.

    Example:
        >>> wide("bfloat16"), wide("float64")
        ('float32', 'float64')
    """
    is_double = keras.backend.standardize_dtype(dtype) == "float64"
    return "float64" if is_double else "float32"


def activate_wide(x, *, activation):
    """Return the activation of a tensor, computed in its wide type.

    XLA rounds bfloat16 after each operation, which takes time.
    """
    return ops.cast(activation(ops.cast(x, wide(x.dtype))), x.dtype)


def as_floats(x):
    """Return a tensor of whole numbers as float32, and others as they are."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return x if keras.backend.is_float_dtype(dtype) else ops.cast(x, "float32")


def as_float32(x) -> np.ndarray:
    """Return a tensor of any floating type as a float32 array."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))
