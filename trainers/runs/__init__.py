"""Folders of runs, and what commands share."""
