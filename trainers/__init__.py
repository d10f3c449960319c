"""Training, evaluating, predicting and exporting from the command line."""

import keras_vit  # noqa: F401  Quiets the start of a command.
