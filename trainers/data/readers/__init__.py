"""Readers of labelled images, one file for each kind of source."""
