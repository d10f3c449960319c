"""Running Keras callbacks around a training loop that is not `fit`."""

import contextlib
from collections.abc import Iterable, Iterator

import keras


@contextlib.contextmanager
def run_callbacks(
    model: keras.Model,
    callbacks: Iterable[keras.callbacks.Callback],
    num_epochs: int,
) -> Iterator[tuple[keras.callbacks.CallbackList, dict]]:
    """Yield the list of callbacks, and the logs that it gets at the end.

    Args:
        model: The model that is trained.
        callbacks: The callbacks.
        num_epochs: Number of evaluations in the whole training.
    """
    calls = keras.callbacks.CallbackList(
        list(callbacks), model=model, epochs=num_epochs
    )
    # TensorBoard and EarlyStopping read these attributes of a model.
    model.optimizer = None
    model.stop_training = False
    logs = {}
    calls.on_train_begin()
    try:
        yield calls, logs
    finally:
        calls.on_train_end(logs)  # Lets the callbacks close their files.
        del model.optimizer
