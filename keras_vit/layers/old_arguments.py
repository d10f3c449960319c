"""The arguments of earlier versions, which their files still have."""

# The name of an argument in version 0.1, and its name now.
RENAMED = {"gelu": "activation"}


def with_new_names(config: dict) -> dict:
    """Return the configuration of a layer or a model under today's names.

    Example:
        >>> with_new_names({"gelu": "exact", "width": 24})
        {'activation': 'exact', 'width': 24}
    """
    return {RENAMED.get(name, name): value for name, value in config.items()}
