"""Training, evaluating, predicting and exporting from the command line."""

import sys

if sys.argv[:1] == ["-m"]:  # As long as Python looks for a command of ours.
    import keras_vit  # noqa: F401  Its start-up quiets TensorFlow.
