"""Sweeps: learning rates tried on held-out images, then several seeds."""
