"""Layout: how a family of checkpoints names and stores a model's weights.

`layers_of` lists the layers of a model. The table of names of a layout says
what the family calls each of them, and its style how it stores the weights of
a layer of that kind. The same table serves reading and writing.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.weights.layer_shapes import layers_of
from keras_vit.weights.styles import Form, Style
from keras_vit.weights.writers import Writer

# Pairs of a regular expression and its replacement, applied in this order.
Changes = tuple[tuple[str, str], ...]
NOTHING = r"(?!)"


class Spelling(NamedTuple):
    """Another way in which a family writes the names of its arrays.

    Args:
        changes: What is to be changed in the usual names.
        stack: Pattern of the part of a name that numbers a block, and what
            stands there if one array holds the weights of all blocks; None if
            each block has arrays of its own.
    """

    changes: Changes = ()
    stack: tuple[str, str] | None = None


class Layout(NamedTuple):
    """A family of checkpoints.

    Args:
        order: Place in LAYOUTS. A file that has the names of several families
            belongs to the first of them.
        title: Name of the family in messages.
        style: How it stores the weights of each kind of layer.
        names: Its name of each layer, by the template of the layer. Several
            names are the parts of one of our matrices, side by side.
        recognise: Names of arrays, at least one of which is in every file.
        unless: Pattern of names that no file of the family has.
        gelu: The GELU that its code computes by default.
        layer_norm_epsilon: The default of its code.
        stem_epsilons: The default of its code for hybrids.
        wrappers: Prefixes that may stand before every name. Arrays without
            the prefix, in a file that has it, belong to the training.
        aliases: Changes that turn older and newer names into those of
            `names`.
        spellings: The other spellings that can be written. The usual one, of
            `names`, is called "".
        spelling_of: Returns the spelling that a configuration requires; None
            if the caller chooses.
        prepare: Renames what patterns cannot. Takes the shapes by name and
            returns, for each new name, the old one and the index in it, or
            None for the whole array.
        ignore: Pattern of names that are no weights of the model.
        unread: Returns the pattern of names that the family's own code leaves
            unread for a configuration.
        optional_bias: Kinds of layers whose bias may be absent from all
            blocks. It is zero then.
        slots: Prefix rows in the position table, default first: of a model
            with class token, and of one without.
        may_lack_slot: Whether a table that is a square grid without prefix
            rows is taken for one, although the default has such a row.
        no_table: Position embedding of a file without a position table; None
            if there is no such file.
        read_hints: Reads what is particular to the family from the JSON
            beside the file. Returns hints as `find_hints` does. Raises a
            ValueError for a model that no VisionTransformer is.
        complete: Takes the inferred configuration and the hints; returns the
            configuration that the family's code computes, and notes on what
            had to be assumed. Raises a ValueError as `read_hints` does.
        writers: How a file is written, by the ending of its path; "" stands
            for a folder. Empty if the family can be read only.
        refuse: Returns why a configuration cannot be written; None if it can.
        said: Fields of ViTConfig that are written besides the weights.
        remedies: What makes the family's code compute a field otherwise than
            by default, in words for the user.
    """

    order: int
    title: str
    style: Style
    names: dict[str, str | tuple[str, ...]]
    recognise: tuple[str, ...]
    unless: str = NOTHING
    gelu: str = "exact"
    layer_norm_epsilon: float = 1e-6
    stem_epsilons: str = "official"
    wrappers: tuple[str, ...] = ()
    aliases: Changes = ()
    spellings: dict[str, Spelling] = {}
    spelling_of: Callable[[ViTConfig], str] | None = None
    prepare: Callable[[dict], dict] | None = None
    ignore: str = NOTHING
    unread: Callable[[ViTConfig], str] = lambda config: NOTHING
    optional_bias: tuple[str, ...] = ()
    slots: tuple[tuple[int, ...], tuple[int, ...]] = ((1,), (0,))
    may_lack_slot: bool = False
    no_table: str | None = None
    read_hints: Callable[[dict], dict] = lambda json: {}
    complete: Callable[[ViTConfig, dict], tuple[ViTConfig, tuple]] = (
        lambda config, hints: (config, ())
    )
    writers: dict[str, Writer] = {}
    refuse: Callable[[ViTConfig], str | None] = lambda config: None
    said: tuple[str, ...] = ()
    remedies: dict[str, str] = {}


class Part(NamedTuple):
    """One array of a file: one of our weights, or a part of it.

    Args:
        name: Its name in the file.
        form: How it is stored.
        shape: Its shape as we keep it.
        optional: Whether a file may lack it.
    """

    name: str
    form: Form
    shape: tuple
    optional: bool = False

    def shape_in_file(self, num_heads: int) -> tuple:
        """Return the shape of the array as it is stored."""
        empty = np.broadcast_to(np.float32(0), self.shape)
        return self.form.to_file(empty, num_heads).shape


def parts_of(layout: Layout, config: ViTConfig) -> dict[str, list[Part]]:
    """Return the arrays in a file for each weight of the model of `config`.

    Args:
        layout: The family of the file.
        config: Configuration of the model.

    Raises:
        ValueError: If the family has no name for a layer.
    """
    found = {}
    for layer in layers_of(config):
        names = layout.names.get(layer.template)
        if names is None or layer.kind not in layout.style:
            raise ValueError(f"{layout.title} has no name for {layer.path}.")
        names = (names,) if isinstance(names, str) else names
        for weight, shape in layer.shapes.items():
            ending, form = layout.style[layer.kind][weight]
            shape = (*shape[:-1], shape[-1] // len(names))
            optional = weight == "bias" and layer.kind in layout.optional_bias
            found[f"{layer.path}/{weight}"] = [
                Part(
                    name.format(**layer.numbers) + ending, form, shape, optional
                )
                for name in names
            ]
    return found


def whole_shape(parts: list[Part]) -> tuple:
    """Return the shape of the weight that `parts` make side by side.

    Args:
        parts: The arrays of one weight.
    """
    return (*parts[0].shape[:-1], parts[0].shape[-1] * len(parts))


def rename(name: str, changes: Changes) -> str:
    """Return `name` after all `changes`.

    Args:
        name: Name of an array.
        changes: Patterns and replacements.
    """
    for pattern, replacement in changes:
        name = re.sub(pattern, replacement, name)
    return name
