"""A training run: its folder, the trainer and what it reports."""
