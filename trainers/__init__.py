"""Training, evaluating, predicting and exporting from the command line."""

import os

# TensorFlow reads this when it is imported: its start-up log is noise to
# somebody who waits for a progress bar. Set the variable to see it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
