"""Models to train that are not Vision Transformers."""
