"""Making the layer that a field of ViTConfig chooses from a table."""

from collections.abc import Mapping

from keras_vit.tables import pick


def make_chosen(
    table: Mapping, kind: str, argument: str, choices: Mapping, **kwargs
):
    """Return a new layer, or None if the row of the table is None.

    The `needs` of a layer lists the choices that its constructor takes, under
    the name of the argument without `PREFIX_`, for a table `PREFIX_...`.

    Args:
        table: Layers by kind.
        kind: A key of the table.
        argument: Name of the caller's argument, for the error.
        choices: The fields of ViTConfig, and others.
        **kwargs: Further arguments of the layer, such as `name`.

    Raises:
        ValueError: If the table has no such row.
    """
    layer_class = pick(table, kind, argument)
    if layer_class is None:
        return None
    prefix = argument.partition("_")[0] + "_"
    needs = {n.removeprefix(prefix): choices[n] for n in layer_class.needs}
    return layer_class(**needs, **kwargs)
