"""Training, evaluating, predicting and exporting from the command line."""
