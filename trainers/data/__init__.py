"""Data sets, image decoding and batches."""
