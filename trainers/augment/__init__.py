"""Augmentation of images."""
