"""Layer-wise decay: smaller learning rates for layers near the input."""

import contextlib
import re

import keras

BLOCK_PATH = re.compile(
    r"(?:^|/)(?:block|position_embedding|rotary_positions|relative_positions)"
    r"_(\d+)(?=/)"
)


def layer_rates(
    variables: list, layer_decay: float, model_variables: list | None = None
) -> list[float]:
    """Return the factor of the learning rate of each variable.

    Everything before the first block is layer 0, block i is layer i + 1, and
    everything after the blocks is layer depth + 1. Layer i gets the factor
    layer_decay^(depth + 1 - i). A path with `block_<i>` belongs to block i.

    Args:
        variables: The trained variables.
        layer_decay: Above 0 and at most 1; with 1, all factors are 1.
        model_variables: All variables of the model in its order, from which
            the layers are counted, whatever is frozen. Default: `variables`.

    Raises:
        ValueError: If the decay is out of range, or there is no block.

    Reference: Clark et al. 2020, arXiv:2003.10555; for images Bao et al. 2022,
        arXiv:2106.08254, and He et al. 2022, arXiv:2111.06377, appendix A.1.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(
            "`layer_decay` must be more than 0 and at most 1. "
            f"Received: layer_decay={layer_decay}"
        )
    if layer_decay == 1:
        return [1.0] * len(variables)
    paths = [v.path for v in (model_variables or variables)]
    blocks = [BLOCK_PATH.search(path) for path in paths]
    if not any(blocks):
        raise ValueError(
            "`layer_decay` must be 1 unless paths of variables have a "
            f"`block_<i>`. Received: layer_decay={layer_decay}, paths={paths}"
        )
    depth = 1 + max(int(block[1]) for block in blocks if block)
    rates, outside = {}, 0
    for path, block in zip(paths, blocks):
        if block:
            outside = depth + 1
        layer = int(block[1]) + 1 if block else outside
        rates[path] = layer_decay ** (depth + 1 - layer)
    return [rates[variable.path] for variable in variables]


def layer_decay_optimizer(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    layer_decay: float,
) -> "LayerDecayOptimizer":
    """Return an optimizer with a lower learning rate for earlier layers.

    Each update of a weight, and its weight decay, is multiplied by the factor
    that `layer_rates` gives its layer.

    Args:
        optimizer: Any optimizer of Keras. It is used inside of the new one.
        model: A model with layers `block_<i>`, such as a VisionTransformer.
            What is frozen in it does not change the factors.
        layer_decay: Ratio of the rates of a block and of the block after it.

    Raises:
        ValueError: If `optimizer` is none, the decay is out of range, or the
            model has no block.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> adamw = keras.optimizers.AdamW(1e-3, weight_decay=0.05)
        >>> model.compile(layer_decay_optimizer(adamw, model, 0.75))
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "`optimizer` must be an optimizer of Keras. "
            f"Received: optimizer={optimizer!r}"
        )
    variables = model.variables
    rates = layer_rates(variables, layer_decay)
    places = [place_of(variable.path) for variable in variables]
    return LayerDecayOptimizer(optimizer, dict(zip(places, rates)))


def place_of(path: str) -> str:
    """Return the path of the block, or else of the layer, of a variable."""
    block = BLOCK_PATH.search(path)
    return path[: block.end()] if block else path.rpartition("/")[0]


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerDecayOptimizer(keras.optimizers.Optimizer):
    """An optimizer around another one, whose rate depends on the layer.

    Create it with `layer_decay_optimizer`.

    Args:
        inner_optimizer: Computes the updates. Its learning rate is that of
            layers with the factor 1.
        rates: The factor of each layer, by the path of the layer or, inside of
            a block, of the block.
        name: Name of the optimizer.
    """

    def __init__(self, inner_optimizer, rates: dict[str, float], name=None):
        if isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "`optimizer` must not scale the loss; `compile` adds the "
                "scaling for a model in float16. "
                f"Received: {type(inner_optimizer).__name__}"
            )
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.rates = dict(rates)
        self._factor = 1.0
        self._replace_steps(inner_optimizer)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def _replace_steps(self, inner):
        """Let the steps of `inner` go through the layers, one by one."""
        current = inner._get_current_learning_rate
        decay = inner._apply_weight_decay
        update = inner._backend_update_step

        def current_rate():
            rate = current()
            return rate if self._factor == 1 else rate * self._factor

        def apply_weight_decay(variables):
            for factor, members in self._grouped(variables).items():
                with self._scaled(factor):
                    decay([variables[index] for index in members])

        def update_step(gradients, variables, learning_rate):
            for factor, members in self._grouped(variables).items():
                update(
                    [gradients[index] for index in members],
                    [variables[index] for index in members],
                    learning_rate * factor,
                )

        # Attributes that are functions; TensorFlow must not track them.
        object.__setattr__(inner, "_get_current_learning_rate", current_rate)
        object.__setattr__(inner, "_apply_weight_decay", apply_weight_decay)
        object.__setattr__(inner, "_backend_update_step", update_step)

    def _grouped(self, variables):
        """Return the indices of the variables, by their factor."""
        groups = {}
        for index, variable in enumerate(variables):
            factor = self._find_factor(place_of(variable.path))
            groups.setdefault(factor, []).append(index)
        return groups

    def _find_factor(self, place):
        if place in self.rates:
            return self.rates[place]
        # A model inside of another one may get a longer path when it is
        # loaded, or lose it.
        factors = {
            factor
            for known, factor in self.rates.items()
            if f"/{known}".endswith(f"/{place}")
            or f"/{place}".endswith(f"/{known}")
        }
        if len(factors) != 1:
            raise ValueError(
                "The optimizer was made for a model without the layer "
                f"{place}; call `layer_decay_optimizer` with the model that "
                f"is trained. Its layers: {', '.join(self.rates)}"
            )
        return factors.pop()

    @contextlib.contextmanager
    def _scaled(self, factor):
        self._factor = factor
        try:
            yield
        finally:
            self._factor = 1.0

    def build(self, variables):
        self.inner_optimizer.build(variables)
        self._trainable_variables = variables[:]
        self.built = True

    @property
    def variables(self):
        return self.inner_optimizer.variables

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(list(trainable_variables))
        self.inner_optimizer.apply(grads, trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        return self.inner_optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def save_own_variables(self, store):
        """Write nothing: Keras saves the inner optimizer by itself."""

    def load_own_variables(self, store):
        """Read nothing: Keras loads the inner optimizer by itself."""

    def get_config(self):
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(
                self.inner_optimizer
            ),
            "rates": self.rates,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner})
