"""The backend of Keras that the trainers need."""

import sys

import keras


def require_tensorflow():
    """End the command unless Keras runs on TensorFlow."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        sys.exit(
            "Error: the trainers need the TensorFlow backend of Keras. "
            f"Received: KERAS_BACKEND={backend}"
        )
