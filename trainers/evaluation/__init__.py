"""Predictions of a model, and their evaluation."""
