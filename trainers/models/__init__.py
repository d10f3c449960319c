"""The model of a recipe, and ResNets as baselines."""
