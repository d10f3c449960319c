"""Training, evaluating, predicting and exporting from the command line."""

import os
import sys

if sys.argv[:1] == ["-m"]:  # As long as Python looks for a command of ours.
    from trainers.help.showing import answer_early

    if "-m" in sys.orig_argv[:-1]:
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        answer_early(module, sys.argv[1:])
    import keras_vit  # noqa: F401  Its start-up quiets TensorFlow.

# TensorFlow reads it when it is imported. Set it to see every line.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
