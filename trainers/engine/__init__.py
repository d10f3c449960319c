"""Engines: what runs the updates of a training on devices and processes."""
