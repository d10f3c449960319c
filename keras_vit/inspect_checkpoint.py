"""Say what a checkpoint holds: `python -m keras_vit.inspect_checkpoint PATH`.

Reads names and shapes alone: neither a model is built nor an array loaded.
"""

import argparse
import dataclasses
import sys

from keras_vit.models.variants import VARIANTS
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.pretrained import locate
from keras_vit.weights.source import Source, identify


def describe(source: Source, show_names: bool = True) -> str:
    """Return the family, the configuration and the names of a checkpoint.

    Args:
        source: What was understood.
        show_names: Whether to list every weight and the arrays it comes from.
    """
    config = source.config
    spelling = f", {source.spelling} names" if source.spelling else ""
    lines = [
        f"path           {source.checkpoint.path}",
        f"family         {source.family}: {source.layout.title}{spelling}",
        f"variant        {variant_of(config) or 'of its own'}",
        f"parameters     {source.num_parameters:,}",
        f"arrays         {len(source.checkpoint.entries)}, "
        f"{len(source.ignored)} of them ignored",
        "",
    ]
    lines += [
        f"{field.name:24} {getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
        or field.name in ("gelu", "layer_norm_epsilon", "image_size")
    ]
    if show_names:
        rows = [("weight", "array in the file", "shape", "type")]
        for path, parts in source.parts.items():
            for part in parts:
                raw, index = source.names.get(part.name, (None, None))
                if raw is None:
                    rows.append((path, "(left out: zero)", "", ""))
                    continue
                entry = source.checkpoint.entries[raw]
                slice_ = "" if index is None else f"[{index}]"
                rows.append((path, raw + slice_, str(entry.shape), entry.dtype))
        for name in source.ignored:
            entry = source.checkpoint.entries[name]
            rows.append(("(ignored)", name, str(entry.shape), entry.dtype))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines.append("")
        lines += [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip()
            for row in rows
        ]
    return "\n".join(lines)


def variant_of(config) -> str | None:
    """Return the name of the published variant of the sizes of `config`.

    Args:
        config: What a model is made of.
    """
    sizes = (
        "width",
        "depth",
        "mlp_dim",
        "num_heads",
        "patch_size",
        "stem_stages",
        "use_class_token",
    )
    for name, variant in VARIANTS.items():
        if all(getattr(variant.config, s) == getattr(config, s) for s in sizes):
            return name
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: The command line without the program, default that of this
            process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.inspect_checkpoint",
        description="Say what a checkpoint of a Vision Transformer holds.",
    )
    parser.add_argument(
        "path",
        help="a .npz, .safetensors or .h5 file, a folder as Hugging Face, timm "
        "or keras-hub write it, or the name of a pretrained model",
    )
    add_hints(parser)
    parser.add_argument(
        "--brief", action="store_true", help="do not list the names"
    )
    options = parser.parse_args(arguments)
    try:
        with open_checkpoint(locate(options.path)) as checkpoint:
            source = identify(
                checkpoint,
                options.num_heads,
                source_image_size=options.source_image_size,
            )
            print(describe(source, show_names=not options.brief))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def add_hints(parser: argparse.ArgumentParser):
    """Add the flags for what a file may leave open.

    Args:
        parser: Takes the flags.
    """
    parser.add_argument(
        "--num_heads",
        type=int,
        help="number of attention heads, if the file does not say",
    )
    parser.add_argument(
        "--source_image_size",
        type=parse_image_size,
        metavar="SIZE",
        help="size of the images of the file in pixels, 224 or 224x160 "
        "(height x width), if the file does not say",
    )


def parse_image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of "224" or "224x160".

    Args:
        text: As it was typed.

    Raises:
        argparse.ArgumentTypeError: If it is neither.
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be a size such as 224 or 224x160, not {text!r}"
        )
    sizes = tuple(int(part) for part in parts)
    return sizes if len(sizes) == 2 else (sizes[0], sizes[0])


if __name__ == "__main__":
    sys.exit(main())
