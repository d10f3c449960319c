"""Optimizers, schedules, losses and loss scaling."""
