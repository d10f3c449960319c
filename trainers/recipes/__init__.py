"""Recipes: every option of a training, and the published ones."""
