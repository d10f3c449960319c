"""TunableModel: frozen weights, LoRA updates and copies of a model.

It is the base of VisionTransformer and DensePredictor.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable

import keras
import numpy as np

from keras_vit.arguments import is_number, is_whole
from keras_vit.layers.base import (
    as_float32,
    nested_dtype_policy,
    refuse_quantized,
)
from keras_vit.layers.positions import PositionEmbedding
from keras_vit.layers.relative import (
    RelativePositionKeys,
    RelativePositionTable,
)
from keras_vit.layers.tokens import PatchEncoder
from keras_vit.tables import pick


class TunableModel(keras.Model):
    """A model that can be fine-tuned in parts, and copied with changes.

    A subclass has the configuration `config` of its encoder, and `inner`,
    which made its layers. Methods called `with_...` return a changed copy.
    """

    # Attributes of a model that are configurations, and their classes.
    configurations: dict[str, type] = {}

    def with_image_size(
        self, image_size: tuple[int, int] | int, patch_size: int | None = None
    ):
        """Return this model for images, and patches, of another size.

        The weights are copied. The position table is resized by the rule
        `position_resize` of the configuration, the kernel of the patches as
        in FlexiViT.

        Args:
            image_size: (height, width) in pixels; one number means a square.
            patch_size: Side of a patch in pixels. Default: that of this model.

        Raises:
            ValueError: If the image is not a whole number of patches.
        """
        if patch_size is None:
            patch_size = self.config.patch_size
        return copy_model(
            self,
            image_size=image_size,
            patch_size=patch_size,
            use_dynamic_image_size=False,
        )

    def with_layer_norm_epsilon(self, layer_norm_epsilon: float):
        """Return this model with another epsilon and the same weights.

        Its outputs differ slightly. `save_checkpoint` requires this where the
        model of another library has a fixed epsilon.

        Args:
            layer_norm_epsilon: Added to each variance, such as 1e-6.
        """
        return copy_model(self, layer_norm_epsilon=layer_norm_epsilon)

    def with_remat(self, use_remat: bool = True):
        """Return this model with or without rematerialised blocks."""
        return copy_model(self, use_remat=use_remat)

    def with_dtype(self, dtype):
        """Return this model with another dtype policy and the same weights.

        Args:
            dtype: Dtype policy of the layers, such as "float32".

        Raises:
            ValueError: If this model is quantised.
        """
        refuse_quantized(self, "use the model that it was quantised from")
        return copy_model(self, dtype=dtype)

    def freeze(self, keep: Iterable[str] = ("head",), num_last_blocks: int = 0):
        """Freeze all weights except those named here.

        Call it before `compile`; after a `fit`, call `compile` again. A batch
        norm whose weights are frozen keeps its statistics.

        Args:
            keep: The parts that are trained: any of "head" (of a
                `DensePredictor`, all layers that the encoder does not have),
                "norms", "biases", "positions" and "class_token".
            num_last_blocks: The number of last blocks that are trained, with
                everything after them.

        Raises:
            ValueError: If a part is unknown, or there are fewer blocks.
        """
        is_kept = keeping(keep)
        is_last = in_last_blocks(self, num_last_blocks)
        set_trained(self, lambda path: is_kept(path) or is_last(path))

    def unfreeze(self):
        """Make all weights trainable, except kernels with LoRA weights."""
        set_trained(self, lambda path: True)

    def enable_lora(
        self,
        rank: int,
        layers: Iterable[str] = ("qkv", "out"),
        alpha: float | None = None,
        keep: Iterable[str] = ("head",),
    ):
        """Train low-rank updates of kernels, and freeze all other weights.

        Each kernel W becomes W + alpha / rank * A B. B starts at zero, so the
        outputs do not change. A file that `save` writes has the merged
        kernels; `keras_vit.save_lora` writes the trained weights alone.

        Args:
            rank: The inner dimension of A B.
            layers: The layers with updates, in all blocks: any of "qkv" and
                "out" of the attention, "mlp_hidden", "mlp_out", and "head"
                (of a `DensePredictor`, all projections and convolutions but
                the transposed ones, which have none in Keras).
            alpha: Scale of the low-rank updates. Default: `rank`.
            keep: The parts that are trained as well; see `freeze`.

        Raises:
            ValueError: If an argument is invalid, or the model is quantised
                or has LoRA weights.

        Reference: Hu et al. 2022, arXiv:2106.09685.
        """
        # All is checked first: after an error, the model is unchanged.
        is_kept = keeping(keep)
        for layer in check_lora(self, rank, layers, alpha):
            add_lora(layer, int(rank), alpha)
        set_trained(self, is_kept)
        if keras.backend.backend() == "torch":
            # Keras makes the parameters of a module once, when it is built.
            self._track_variables()

    def merge_lora(self):
        """Return a copy with the LoRA weights added to their kernels.

        What is frozen stays frozen; `unfreeze` trains all weights.
        """
        return copy_model(self, is_merged=True)

    def save(self, filepath, *arguments, **options):
        if layers_with_lora(self):
            # Keras would merge in the compute dtype and save a wrong optimizer.
            return self.merge_lora().save(filepath, *arguments, **options)
        return super().save(filepath, *arguments, **options)

    def get_config(self):
        return {
            **{
                name: dataclasses.asdict(getattr(self, name))
                for name in self.configurations
            },
            "dtype": nested_dtype_policy(self),
            "name": self.name,
            "trainable": self.trainable,
            **self.inner.find_edits(self.layers),
            **describe_frozen(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name, configuration in cls.configurations.items():
            config[name] = configuration(**config[name])
        return make_frozen(cls, config)


def set_trained(model, is_trained: Callable[[str], bool]):
    """Make exactly the weights whose paths `is_trained` accepts trainable.

    A kernel with LoRA stays frozen, and its factors stay trainable. A layer
    none of whose weights is trained is frozen as a whole.
    """
    replaced = {f"{layer.path}/kernel" for layer in layers_with_lora(model)}
    layers = model._flatten_layers()
    for layer in layers:
        for weight in layer._trainable_variables:
            weight.trainable = weight.path not in replaced and (
                is_factor(weight) or is_trained(weight.path)
            )
    for layer in layers:
        # Setting `trainable` would set all sublayers as well, or, on
        # TensorFlow, nothing at all if the layer has this value already.
        has_trained = any(weight.trainable for weight in layer.weights)
        layer._trainable = has_trained or not layer.weights
    model._trainable = True
    # Compiled functions contain the weights as they were.
    model.train_function = model.test_function = model.predict_function = None


def keeping(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that accepts the paths of weights of these PARTS."""
    if isinstance(names, str):
        raise ValueError(
            f"`keep` must be a sequence of names. Received: keep={names!r}"
        )
    patterns = [pick(PARTS, name, "keep") for name in names]
    return lambda path: any(re.search(p, path) for p in patterns)


def in_last_blocks(model, num_last_blocks: int) -> Callable[[str], bool]:
    """Return a function that accepts paths in the last blocks and behind."""
    depth = model.config.depth
    if type(num_last_blocks) is not int or not 0 <= num_last_blocks <= depth:
        raise ValueError(
            "`num_last_blocks` must be a whole number from 0 to the number of "
            f"blocks, {depth}. Received: num_last_blocks={num_last_blocks!r}"
        )
    if not num_last_blocks:
        return lambda path: False
    names = [layer.name for layer in model.layers]
    first = depth - num_last_blocks
    last = names[names.index(f"block_{first:02d}") :]
    # In the list of layers, these precede their block.
    kinds = ("position_embedding", "relative_positions", "rotary_positions")
    last += [f"{kind}_{first:02d}" for kind in kinds]
    # In any order: a dense head reads earlier blocks, too.
    is_head = keeping(["head"])
    return lambda path: is_head(path) or path.split("/")[0] in last


def train_layer(model, name: str):
    """Make the layer of this name trainable, also if all else is frozen."""
    model._trainable = True
    layer = model.get_layer(name)
    layer.trainable = True
    for weight in layer.weights:
        weight.trainable = True


def describe_frozen(model) -> dict[str, list[str]]:
    """Return the paths of frozen layers, and of frozen weights in others."""
    layers = [
        layer.path
        for layer in model._flatten_layers(include_self=False)
        if layer.path and not layer.trainable
    ]
    weights = [
        weight.path
        for layer in model._flatten_layers()
        if layer.trainable
        for weight in layer._trainable_variables
        if not (weight.trainable or is_factor(weight))
    ]
    return {
        "frozen": layers,
        **({"frozen_weights": weights} if weights else {}),
    }


def freeze_again(model, layers: Iterable[str], weights: Iterable[str]):
    """Freeze the layers and weights that `describe_frozen` returned."""
    layers, weights = set(layers), set(weights)
    for layer in model._flatten_layers(include_self=False):
        if layer.path in layers:
            layer.trainable = False
    for weight in model.weights:
        if weight.path in weights:
            weight.trainable = False


def make_frozen(model_class: type, config: dict):
    """Return a model of its arguments and what `describe_frozen` returned."""
    config = dict(config)
    frozen = [config.pop(k, ()) for k in ("frozen", "frozen_weights")]
    model = model_class(**config)
    freeze_again(model, *frozen)
    return model


def is_factor(weight) -> bool:
    """Return whether `weight` is a factor of a LoRA update."""
    return weight.name.startswith("lora_")


# The names of the layers of a classifier and of the dense heads.
HEAD = r"(predictions|(head|stage|fusion)_\w+)"
# Part -> pattern that the paths of its weights contain.
PARTS = {
    "head": rf"^{HEAD}/",
    "norms": r"/(gamma|beta)$",
    "biases": r"/(query_|value_)?bias$",
    "positions": r"^(position_embedding|(rotary|relative)_positions)(_\d+)?/",
    "class_token": r"^(class_token|distillation_token|registers)/",
}


def merged_values(model: keras.Model) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that compute each weight, with its LoRA update, by path.

    The weights are float32. The model is not changed.
    """
    values = {w.path: functools.partial(as_float32, w) for w in model.weights}
    for layer in layers_with_lora(model):
        path = f"{layer.path}/kernel"
        values[path] = functools.partial(merged_kernel, layer)
    return values


def merged_kernel(layer: keras.layers.Layer) -> np.ndarray:
    """Return the kernel of a layer with its LoRA update, in float32."""
    own = {weight.name: as_float32(weight) for weight in layer.weights}
    update = own["lora_kernel_a"] @ own["lora_kernel_b"]
    return (
        own["kernel"] + np.float32(layer.lora_alpha / layer.lora_rank) * update
    )


def without_lora(model: keras.Model) -> keras.Model:
    """Return `model`, or a copy with merged LoRA weights if it has any.

    A model that is no TunableModel is returned as it is.
    """
    has_lora = isinstance(model, TunableModel) and layers_with_lora(model)
    return model.merge_lora() if has_lora else model


def add_lora(layer, rank: int, alpha: float | None):
    """Add a low-rank update, which files neither round nor reset."""
    layer.enable_lora(rank, lora_alpha=alpha)
    layer.save_own_variables = functools.partial(save_merged, layer)
    layer.load_own_variables = functools.partial(load_merged, layer)


def save_merged(layer, store):
    """Store a layer as Keras does, but with the kernel merged in float32.

    Keras merges in the compute dtype, which rounds all of the kernel.
    """
    if layer.quantization_mode is not None:
        type(layer).save_own_variables(layer, store)
        return
    store["0"] = merged_kernel(layer)
    if layer.bias is not None:
        store["1"] = layer.bias


def load_merged(layer, store):
    """Load a layer as Keras does, but leave A as it is.

    Keras sets A and B to zero, where neither has a gradient.
    """
    start = keras.ops.convert_to_numpy(layer.lora_kernel_a)
    type(layer).load_own_variables(layer, store)
    layer.lora_kernel_a.assign(start)


def check_lora(model, rank: int, layers: Iterable[str], alpha) -> list:
    """Return the layers to which LoRA weights can be added.

    Raises:
        ValueError: If the model is quantised or has LoRA weights, a
            name is unknown, or a number is out of range.
    """
    refuse_quantized(
        model,
        "a quantised model cannot be fine-tuned, but the one that it was "
        "quantised from",
    )
    if layers_with_lora(model):
        raise ValueError(
            "The model has LoRA updates; continue with "
            "`model = model.merge_lora()`. "
            f"Received: {describe_lora(model)}"
        )
    if alpha is not None and not (is_number(alpha) and 0 < alpha < math.inf):
        raise ValueError(
            f"`alpha` must be a positive number. Received: alpha={alpha!r}"
        )
    targets = _find_layers(model, layers)
    for layer in targets:
        *rows, columns = layer.kernel.shape
        most = min(math.prod(rows), columns)
        if not is_whole(rank) or not 1 <= rank <= most:
            raise ValueError(
                f"`rank` must be a whole number from 1 to {most} for the layer "
                f"{layer.path}, whose kernel has the shape "
                f"{tuple(layer.kernel.shape)}. Received: rank={rank!r}"
            )
    return targets


def _find_layers(model, names):
    """Return the layers of these LORA_LAYERS, in the order of their paths."""
    if isinstance(names, str):
        raise ValueError(
            f"`layers` must be a sequence of names. Received: layers={names!r}"
        )
    found = {
        name: [
            layer
            for layer in model._flatten_layers(include_self=False)
            if layer.path
            and hasattr(layer, "enable_lora")
            and re.fullmatch(pick(LORA_LAYERS, name, "layers"), layer.path)
        ]
        for name in names
    }
    missing = [name for name in found if not found[name]]
    if missing or not found:
        raise ValueError(
            "`layers` must name one or more layers of the model. "
            f"Received: layers={tuple(names)!r}"
            + (f"; it has no {missing[0]}" if missing else "")
        )
    return sorted(sum(found.values(), []), key=lambda layer: layer.path)


def layers_with_lora(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers with LoRA weights."""
    return [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]


def describe_lora(model) -> dict:
    """Return the rank, the alpha and the LORA_LAYERS of a model with LoRA."""
    layers = layers_with_lora(model)
    names = [
        name
        for name, pattern in LORA_LAYERS.items()
        if any(re.fullmatch(pattern, layer.path) for layer in layers)
    ]
    first = layers[0]
    return {"rank": first.lora_rank, "alpha": first.lora_alpha, "layers": names}


# Name -> pattern of the paths of the layers.
LORA_LAYERS = {
    "qkv": r"block_\d+/attention/qkv",
    "out": r"block_\d+/attention/out",
    "mlp_hidden": r"block_\d+/mlp/hidden",
    "mlp_out": r"block_\d+/mlp/out",
    "head": rf"{HEAD}(/.+)?",
}


def copy_model(model, new_layers=(), *, dtype=None, is_merged=False, **changes):
    """Return a copy of a TunableModel with the same weights.

    The copy has the LoRA weights of the model, and the same weights are
    frozen.

    Args:
        model: The model; it does not change.
        new_layers: Names of the layers whose weights are not copied.
        dtype: Dtype policy of the copy. Default: that of the model.
        is_merged: Whether to add LoRA updates to their kernels.
        **changes: Fields of the configuration.

    Raises:
        ValueError: If the configuration is invalid, a quantised model would be
            merged, or the class of the model does not take a configuration.
    """
    if is_merged:
        refuse_quantized(model, "quantise what `merge_lora()` returns instead")
    config = dataclasses.replace(model.config, **changes)
    arguments = {
        **model.get_config(),
        "config": dataclasses.asdict(config),
        **({"dtype": dtype} if dtype else {}),
    }
    edits = arguments.get("edits", {})
    for field in OVERRULED.keys() & changes.keys():
        names, entries = OVERRULED[field]
        for name in edits.keys() & (names or edits.keys()):
            edits[name] = _without(edits[name], entries)
    copy = type(model).from_config(arguments)
    if copy.config != config:
        raise ValueError(
            f"The class {type(model).__name__} must build its model from the "
            "`config` that `from_config` receives, as VisionTransformer does; "
            "it built one of another configuration. "
            f"Received: model={model.name!r}, {changes}"
        )
    merged = merged_values(model) if is_merged else {}
    known = {layer.name for layer in model.layers}
    for layer in copy.layers:
        is_added = layer.name not in known and not layer.trainable_weights
        if layer.name in new_layers or is_added:
            continue
        source = model.get_layer(layer.name)
        for new, old in zip(layer._flatten_layers(), source._flatten_layers()):
            new.trainable = old.trainable
            if not is_merged and getattr(old, "lora_enabled", False):
                add_lora(new, old.lora_rank, old.lora_alpha)
        if isinstance(layer, RESIZABLE):
            layer.resize_from(source)
        # In the order of their paths: their own order differs after quantising
        # to float8 and building so.
        kept, weights = (
            sorted(each.weights, key=lambda weight: weight.path)
            for each in (source, layer)
        )
        kept = [w for w in kept if not (is_merged and is_factor(w))]
        for new, old in zip(weights, kept, strict=True):
            value = new if isinstance(layer, RESIZABLE) else old
            is_other = is_merged and value is old
            value = merged[old.path]() if is_other else value.numpy()
            # JAX could share the array, and frees it when one of them predicts.
            new.assign(np.array(value))
            new.trainable = old.trainable
    return copy


def _without(edits, entries):
    """Return edits of layers without some of their entries."""
    return {
        key: _without(value, entries) if isinstance(value, dict) else value
        for key, value in edits.items()
        if key not in entries
    }


# Fields of the configuration: the layers, all for None, whose entries they set.
# If such a field changes, it overrules what users have edited.
OVERRULED = {
    "classifier_activation": (("predictions",), ("activation",)),
    "layer_norm_epsilon": (
        None,
        ("epsilon", "layer_norm_epsilon", "norm_epsilon"),
    ),
    "use_remat": (None, ("use_remat",)),
    "merged_tokens": (None, ("merged_tokens",)),
    "patch_dropout_rate": (("patch_dropout",), ("rate",)),
}
# Layers whose weights depend on the size of the images or of the patches. They
# have no LoRA weights.
RESIZABLE = (
    PatchEncoder,
    PositionEmbedding,
    RelativePositionKeys,
    RelativePositionTable,
)
