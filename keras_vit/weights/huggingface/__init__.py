"""transformers: its model types and classes, for two families."""
