"""timm: its architectures and classes, for the family `timm`."""
