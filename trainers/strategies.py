"""Where a model is trained: one device or several."""

import tensorflow as tf

from keras_vit.tables import pick


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Return a distribution strategy.

    Args:
        name: A key of STRATEGIES.

    Raises:
        ValueError: If there is no such strategy.
    """
    return pick(STRATEGIES, name, "strategy")()


def one_device():
    """Train on the first GPU, or on the CPU if there is none."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/{kind}:0")


def mirrored():
    """Copy the model to every GPU of this machine, or every logical CPU."""
    devices = tf.config.list_logical_devices(
        "GPU"
    ) or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


STRATEGIES = {"one_device": one_device, "mirrored": mirrored}
