"""Optimizers by name; weight decay touches kernels only."""

import keras

from keras_vit.tables import pick


def make_optimizer(
    name: str, learning_rate, weight_decay: float, variables: list
) -> keras.optimizers.Optimizer:
    """Return an optimizer built for `variables`.

    Weight decay follows Keras: each update subtracts learning rate * decay *
    weight. Biases, norms, tokens and position tables are left out of it, as
    in big_vision. No optimizer here clips: Keras clips before it sums over
    the replicas, so the loop does that itself.

    Args:
        name: A key of OPTIMIZERS.
        learning_rate: A number or a schedule.
        weight_decay: Strength of the decay; 0 for none.
        variables: The trainable variables of the model.

    Raises:
        ValueError: If there is no such optimizer.
    """
    optimizer = pick(OPTIMIZERS, name, "optimizer")(learning_rate, weight_decay)
    if weight_decay:
        optimizer.exclude_from_weight_decay(
            var_list=[v for v in variables if v.name != "kernel"]
        )
    optimizer.build(variables)
    return optimizer


def adamw(learning_rate, weight_decay):
    """Adam with decoupled weight decay, epsilon 1e-8 as in the papers' code."""
    return keras.optimizers.AdamW(
        learning_rate, weight_decay=weight_decay, epsilon=1e-8
    )


def sgd(learning_rate, weight_decay):
    """Momentum 0.9, the optimizer of the fine-tuning recipes."""
    return keras.optimizers.SGD(
        learning_rate, momentum=0.9, weight_decay=weight_decay or None
    )


OPTIMIZERS = {"adamw": adamw, "sgd": sgd}
