"""Checking a data set before training: faults, copies, and a page."""
