"""Folders of runs, and functions that several commands use."""
