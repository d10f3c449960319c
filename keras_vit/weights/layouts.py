"""Layout: the names and the form of the weights in a family of checkpoints.

`layers_of` lists the layers of a model. The table of names of a layout maps
each layer to its name in the family, and its style defines how the family
stores the weights of each kind of layer. Reading and writing share the table;
`parts_of` looks a model up in it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.weights.styles import Form, Style
from keras_vit.weights.writers import Writer

# Pairs of a regular expression and its replacement, applied in this order.
Changes = tuple[tuple[str, str], ...]
NOTHING = r"(?!)"
# What the code around a model of PyTorch writes before its names.
TORCH_WRAPPERS = (
    "model.",
    "state_dict.",
    "teacher.",
    "student.",
    "backbone.",
    "base_encoder.",
    "target_encoder.",
    "encoder.",
)
Names = Collection[str]


class Dialect(NamedTuple):
    """Another way in which a family writes the names of its arrays.

    Args:
        changes: Changes of the usual names.
        stack: Pattern of the numbered part of a name, and its replacement in
            the name of an array that contains the weights of all blocks; None
            if each block has its own arrays.
    """

    changes: Changes = ()
    stack: tuple[str, str] | None = None


class NameVariant(NamedTuple):
    """Other names of some layers, in a part of the files of a family.

    Args:
        shown_by: Pattern of names. A file with such a name has the variant.
        names: The names of the layers that differ; None if the files lack the
            layer.
        style: The kinds of layers that differ.
        used_by: Returns whether the file of a model is written with it.
        stated_by: Returns whether the JSON beside a file states the variant.
    """

    shown_by: str
    names: dict[str, str | tuple[str, ...] | None] = {}
    style: Style = {}
    used_by: Callable[[ViTConfig], bool] = lambda config: False
    stated_by: Callable[[dict], bool] = lambda json: False


class Layout(NamedTuple):
    """A family of checkpoints.

    Args:
        order: Position in LAYOUTS. A file with the names of several families
            belongs to the first of them.
        title: Name of the family in messages.
        style: How the family stores the weights of each kind of layer, and,
            by its template, of a layer that it stores in another way.
        names: The name of each layer, by the template of the layer. Several
            names are the parts of one matrix, side by side.
        recognise: Names of arrays. Every file has at least one of them.
        unless: Pattern of names that no file of the family has.
        variants: The variants of the family. A file may have several.
        has_architectures: Whether the code of the family has names of
            architectures, which `read_hints` reads.
        has_later_parts: Whether files may have the parts of Vision
            Transformers after 2021, which are inferred from the names.
        activation: The default activation of the family's code.
        layer_norm_epsilon: The default of the family's code.
        stem_epsilons: The default of the family's code for hybrids.
        wrappers: Prefixes that all names may have, one behind the other in
            any order. In a file with one that ends in "/", arrays without it
            belong to the training state.
        aliases: Changes that turn older and newer names into those of
            `names`.
        dialects: The other dialects that can be written. The usual one, in
            `names`, has the key "".
        dialect_of: Returns the dialect that a model requires; None if the
            caller chooses.
        stacks: Arrays that contain the weights of all blocks in every
            dialect, and the axis of the block.
        prepare: Renames arrays where patterns are not enough. Takes the shapes
            by name; returns, for each new name, the old name and the index in
            that array, or None for the whole array.
        ignore: Pattern of names that do not belong to weights of the model.
        unread: Returns the pattern of names that the family's own code does
            not read for a configuration.
        optional_bias: Kinds of layers whose bias may be missing in all blocks,
            and templates of other layers; it is then zero.
        slots: Prefix rows in the position table, default first: (with class
            token), (without).
        may_lack_slot: Whether to accept a table that is a square grid without
            prefix rows, although the default has a prefix row.
        position_resize: A key of RESIZES: how the family's code resizes the
            position table; hints may contain another one.
        resize_of: Takes the names in the file, those of ignored arrays as
            well. Returns the rule of the code that wrote it, where that is
            another one, or None.
        normalization: A key of NORMALIZATIONS, for the images of files that
            state no other; None if the family has several.
        no_table: Position embedding of a file without a position table; None
            if such a file is an error.
        describe: Returns the part of the JSON beside the file that describes
            the Vision Transformer.
        read_hints: Reads the settings of the family from the JSON beside the
            file. Returns hints as `find_hints` does. Raises a ValueError if a
            VisionTransformer cannot express the model.
        guess_heads: Takes the inferred configuration and the hints. Returns
            the number of heads of the model with this name, or None.
        complete: Takes the inferred configuration, the hints and the names in
            the file. Returns the configuration that the family's code
            computes, and notes on assumptions. Raises a ValueError if it
            cannot be known, or as `read_hints` does.
        settle: Takes this configuration and a function that returns an ignored
            array by its name, None without it. Returns the configuration that
            the values of the array imply.
        conditioner: Names of ignored arrays: the mean and the deviation by
            which the family's code normalises pixels from 0 to 1.
        undetermined: Takes a configuration and the names in a file. For each
            part of the model whose settings do not show in the file, yields a
            description of the part and the undetermined fields of ViTConfig.
        writers: Writers by the ending of the path; "" is the ending of a
            folder. Empty if the family is read only.
        later_fields: Returns the fields added since 2021 that can be written
            for a model.
        later_values: The values of such fields that can be written, if they
            are the names of rows in a table; see `find_inexpressible`.
        written_by: Returns the key of the layout in whose names a model is
            written; None for this one.
        prefix_rows: Returns the number of rows before the patches in the
            position table that is written.
        joins: Arrays that are written as one, side by side on the first axis.
        adds: Returns the shapes, by name, of arrays that are used in training
            only, and are written as zeros.
        drops: Returns the weights that are not written; they must be zero.
        computes: Returns the values of fields that the family's code computes
            for the file of a model, where they are not its defaults.
        refuse: Returns the reason why a configuration cannot be written; None
            if it can.
        notes: Yields notes on differences between a folder and the model that
            do not change the outputs of the weights.
        stated_fields: Fields of ViTConfig that config.json of a folder states.
        class_entries: Takes the names of the classes, in the order of the
            logits. Returns the entries of config.json with them. None if
            folders of the family have no such names.
        remedies: For a field, a function from its value to advice on how to
            make the family's code compute it.
    """

    order: int
    title: str
    style: Style
    names: dict[str, str | tuple[str, ...]]
    recognise: tuple[str, ...]
    unless: str = NOTHING
    variants: tuple[NameVariant, ...] = ()
    has_architectures: bool = False
    has_later_parts: bool = False
    activation: str = "exact"
    layer_norm_epsilon: float = 1e-6
    stem_epsilons: str = "official"
    wrappers: tuple[str, ...] = ()
    aliases: Changes = ()
    dialects: dict[str, Dialect] = {}
    dialect_of: Callable[[ViTConfig], Dialect] | None = None
    stacks: dict[str, int] = {}
    prepare: Callable[[dict], dict] | None = None
    ignore: str = NOTHING
    unread: Callable[[ViTConfig], str] = lambda config: NOTHING
    optional_bias: tuple[str, ...] = ()
    slots: tuple[tuple[int, ...], tuple[int, ...]] = ((1,), (0,))
    may_lack_slot: bool = False
    position_resize: str = "official"
    resize_of: Callable[[Names], str | None] = lambda names: None
    normalization: str | None = "vit"
    no_table: str | None = None
    describe: Callable[[dict], dict] = lambda json: json
    read_hints: Callable[[dict], dict] = lambda json: {}
    guess_heads: Callable[[ViTConfig, dict], int | None] = (
        lambda config, hints: None
    )
    complete: Callable[[ViTConfig, dict, Names], tuple[ViTConfig, tuple]] = (
        lambda config, hints, names: (config, ())
    )
    settle: Callable[[ViTConfig, Callable], ViTConfig] = lambda config, read: (
        config
    )
    conditioner: tuple[str, str] | None = None
    undetermined: Callable[[ViTConfig, Names], Iterable[tuple[str, Names]]] = (
        lambda config, names: ()
    )
    writers: dict[str, Writer] = {}
    later_fields: Callable[[ViTConfig], Collection[str]] = lambda config: ()
    later_values: dict[str, Names] = {}
    written_by: Callable[[ViTConfig], str] | None = None
    prefix_rows: Callable[[ViTConfig], int] = lambda config: (
        config.use_prefix_positions * config.num_prefix_tokens
    )
    joins: dict[str, tuple[str, ...]] = {}
    adds: Callable[[ViTConfig], dict[str, tuple]] = lambda config: {}
    drops: Callable[[ViTConfig], Collection[str]] = lambda config: ()
    computes: Callable[[ViTConfig], dict] = lambda config: {}
    refuse: Callable[[ViTConfig], str | None] = lambda config: None
    notes: Callable[[ViTConfig], Iterable[str]] = lambda config: ()
    stated_fields: tuple[str, ...] = ()
    class_entries: Callable[[Sequence[str]], dict] | None = None
    remedies: dict[str, Callable[[Any], str]] = {}

    def of_file(self, names: Names, json: dict) -> "Layout":
        """Return the layout with the variants of a file.

        Args:
            names: The names in the file, after `aliases`.
            json: The JSON beside it.
        """
        return self._with_variants(
            lambda row: (
                row.stated_by(json)
                or any(re.match(row.shown_by, name) for name in names)
            )
        )

    def of_model(self, config: ViTConfig) -> "Layout":
        """Return the layout with the variants for the file of a model.

        Args:
            config: Configuration of the model.
        """
        return self._with_variants(lambda row: row.used_by(config))

    def _with_variants(self, is_used):
        chosen = self
        for variant in filter(is_used, self.variants):
            names = {**chosen.names, **variant.names}
            chosen = chosen._replace(
                names={layer: n for layer, n in names.items() if n is not None},
                style={**chosen.style, **variant.style},
            )
        return chosen

    def style_of(self, template: str, kind: str) -> dict[str, tuple[str, Form]]:
        """Return the endings and the forms of the weights of a layer.

        Args:
            template: Template of the layer.
            kind: Kind of the layer.
        """
        return self.style.get(template, self.style.get(kind))

    def knows(self, name: str) -> bool:
        """Return whether a model of the family can have an array.

        Args:
            name: Name of the array.
        """
        layers = (
            layer
            for names in self.names.values()
            for layer in ((names,) if isinstance(names, str) else names)
        )
        rows = (row for kind in self.style.values() for row in kind.values())
        endings = "|".join({re.escape(ending) for ending, _ in rows})
        patterns = (
            re.sub(r"\\{\w+\\}", r"\\w*", re.escape(layer)) for layer in layers
        )
        return any(re.fullmatch(f"{p}({endings})", name) for p in patterns)


def rename(name: str, changes: Changes) -> str:
    """Return `name` after applying all `changes`.

    Args:
        name: Name of an array.
        changes: Patterns and their replacements.
    """
    for pattern, replacement in changes:
        name = re.sub(pattern, replacement, name)
    return name
