"""Export the model of a run with the images of its data set."""
