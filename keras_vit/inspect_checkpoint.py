"""Describe a checkpoint: `python -m keras_vit.inspect_checkpoint PATH`.

Only names and shapes are read: no model is built and no array is loaded.
"""

if __name__ == "__main__":  # A mistyped argument is found before slow imports.
    from keras_vit.command_line import begin, make_inspect_checkpoint_parser

    begin(make_inspect_checkpoint_parser)

import dataclasses
import sys

from keras_vit.command_line import (
    hints_of,
    make_inspect_checkpoint_parser,
    run_command,
)
from keras_vit.model_files import is_run
from keras_vit.models.variants import VARIANTS
from keras_vit.weights.containers import open_file
from keras_vit.weights.find import Found, Known, find
from keras_vit.weights.hub import locate


def describe_checkpoint(found: Found, show_names: bool = True) -> str:
    """Return the family, the configuration and the names of a checkpoint."""
    config = found.config
    dialect = f", {found.dialect} names" if found.dialect else ""
    images = "the file does not say how they were normalised"
    if settings := found.preprocessing:
        images = (
            f"normalised by {settings.normalization!r}, "
            f"{settings.interpolation}, {settings.resize_mode}, "
            f"{settings.crop_fraction:.4g} of each side kept"
        )
    lines = [
        f"path           {found.file.path}",
        f"family         {found.key}: {found.family.title}{dialect}",
        f"variant        {variant_of(config) or 'custom'}",
        f"parameters     {found.num_parameters:,}",
        f"arrays         {len(found.file.arrays)}, "
        f"{len(found.ignored)} of them ignored",
        f"images         {images}",
        "",
    ]
    lines += [
        f"{field.name:24} {getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if field.name in ALWAYS_SHOWN
        or getattr(config, field.name) != field.default
        and field.name != "preprocessing"
    ]
    if found.notes:
        lines += ["", *(f"note           {note}" for note in found.notes)]
    if show_names:
        rows = _name_rows(found)
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines.append("")
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths))
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _name_rows(found) -> list[tuple[str, ...]]:
    """Return a row for each weight, and for each array that is ignored."""
    rows = [("weight", "array in the file", "shape", "type")]
    for path, parts in found.parts.items():
        for part in parts:
            raw, index = found.places.get(part.name, (None, None))
            if raw is None:
                rows.append((path, "(left out: zero)", "", ""))
                continue
            array = found.file.arrays[raw]
            name = raw if index is None else f"{raw}[{index}]"
            rows.append((path, name, str(array.shape), array.dtype))
    for name in found.ignored:
        array = found.file.arrays[name]
        rows.append(("(ignored)", name, str(array.shape), array.dtype))
    return rows


def variant_of(config) -> str | None:
    """Return the published variant that has the sizes of `config`, or None."""
    sizes = [getattr(config, field) for field in SIZES]
    for name, variant in VARIANTS.items():
        if [getattr(variant.config, field) for field in SIZES] == sizes:
            return name
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = make_inspect_checkpoint_parser().parse_args(arguments)
    return run_command(lambda: _describe(options))


def _describe(options):
    """Print what a checkpoint contains."""
    if is_run(options.path):
        raise ValueError(
            f"{options.path} is the folder of a run, whose model.keras is no "
            "checkpoint: open it with keras.saving.load_model, or look into it "
            "with keras-vit inspect"
        )
    with open_file(locate(options.path)) as file:
        found = find(file, Known(**hints_of(options)))
        print(describe_checkpoint(found, show_names=not options.brief))


# Fields that make a variant.
SIZES = (
    "width",
    "depth",
    "mlp_dim",
    "num_heads",
    "patch_size",
    "stem_stages",
    "use_class_token",
)
# Fields that are shown even if they have their default.
ALWAYS_SHOWN = ("activation", "image_size", "layer_norm_epsilon")


if __name__ == "__main__":
    sys.exit(main())
