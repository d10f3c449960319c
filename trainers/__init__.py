"""Training, evaluating, predicting and exporting from the command line."""

import os
import sys

if sys.argv[:1] == ["-m"]:  # As long as Python looks for a command of ours.
    import keras_vit  # noqa: F401  Its start-up quiets TensorFlow.

# TensorFlow reads it when it is imported. Set it to see every line.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
