"""make_engine: the engine of a strategy, on the backend of Keras."""

import keras

from trainers.engine.cluster import ALONE, WorkerConfig
from trainers.engine.engine import Engine


def make_engine(
    name: str, config: WorkerConfig = ALONE, model_devices: int = 1
) -> Engine:
    """Return the engine of a strategy, on the backend of Keras.

    Call this before any other operation of the backend, which would
    initialise the devices without the other processes.

    Args:
        name: Name of the strategy, a key of STRATEGIES of the engine.
        config: How the other processes are found, if there are several.
        model_devices: Number of devices that share each dense layer.

    Raises:
        ValueError: If the backend has no such strategy, or one of its
            requirements is missing.
        WorkerLostError: If other processes do not start in time.
    """
    if keras.backend.backend() == "jax":
        from trainers.engine import jax as backend
    else:
        from trainers.engine import tensorflow as backend
    return backend.make_engine(name, config, model_devices)
