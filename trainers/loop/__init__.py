"""The training loop, its steps, checkpoints and progress."""
