"""Find the images that are most similar to photos, texts or one another.

EMBEDDINGS is a folder that trainers.embed wrote.

Example:
    python -m trainers.similar EMBEDDINGS PHOTO... --out=similar.html
    python -m trainers.similar EMBEDDINGS --text="a red flower"
    python -m trainers.similar EMBEDDINGS --duplicates=0.95
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.similar")

import csv
import sys
from collections.abc import Sequence

import numpy as np
from absl import flags

from trainers.commands import run_main, stop_at_once, user_errors
from trainers.data.readers.image_paths import printable
from trainers.evaluation.embeddings import Embeddings, open_embeddings
from trainers.evaluation.file_predictions import expand_folders
from trainers.evaluation.similarity import (
    MOST_GROUPS,
    MOST_PICTURES,
    Found,
    find_near_duplicates,
    find_nearest,
    show_label,
    write_similar_page,
)
from trainers.evaluation.vectors import (
    draw_file,
    embed_files,
    embed_texts,
    read_pictures,
)
from trainers.pages import page_path

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        folder, *words = arguments[1:] or [None]
        asked = bool(words), bool(FLAGS.text), FLAGS.duplicates is not None
        if folder is None or sum(asked) != 1:
            raise ValueError(
                "Pass a folder of embeddings, and either photos, --text or "
                f"--duplicates. Received: {' '.join(arguments[1:])!r}, "
                f"text={FLAGS.text!r}, duplicates={FLAGS.duplicates}"
            )
        page = FLAGS.out and page_path(FLAGS.out)
        embeddings = open_embeddings(folder)
        if words:
            found = find_photos(embeddings, expand_folders(words), FLAGS.top)
        elif FLAGS.text:
            queries = embed_texts(embeddings, FLAGS.text)
            found = find_vectors(embeddings, queries, FLAGS.text, FLAGS.top)
        else:
            found = find_groups(embeddings, FLAGS.duplicates)
        show(found, embeddings, FLAGS.format)
        if page:
            rows = [
                image.row
                for entry in found[:MOST_GROUPS]
                for image in entry.images[:MOST_PICTURES]
            ]
            write_similar_page(
                page,
                "Near duplicates" if FLAGS.duplicates else "Similar images",
                found,
                embeddings.paths,
                embeddings.labels,
                read_pictures(embeddings, rows),
            )
            print(f"Page: {page}", file=sys.stderr)


def find_photos(
    embeddings: Embeddings, paths: Sequence[str], top: int
) -> list[Found]:
    """Return the images that are most similar to those of files."""
    pictures = [draw_file(embeddings, path) for path in paths]
    queries = embed_files(embeddings, paths)
    titles = [printable(path) for path in paths]
    return find_vectors(embeddings, queries, titles, top, pictures)


def find_vectors(
    embeddings: Embeddings,
    queries: np.ndarray,
    titles: Sequence[str],
    top: int,
    pictures: Sequence[bytes | None] | None = None,
) -> list[Found]:
    """Return the images whose vectors have the largest cosines to others.

    Shapes:
        queries: (Q, D), such as the vectors of photos, or of texts by the
            text tower of the model.

    Args:
        embeddings: The images to search.
        queries: The vectors to compare with.
        titles: What each of them is of.
        top: Number of images for each.
        pictures: A JPEG of each, or None; None if they are of no pictures.

    Raises:
        ValueError: If the vectors are not as wide as those of the images.
    """
    if queries.shape != (len(titles), embeddings.width):
        raise ValueError(
            f"`queries` must have {embeddings.width} numbers for each title. "
            f"Received: shape={queries.shape}, {len(titles)} titles"
        )
    pictures = pictures or [None] * len(titles)
    nearest = find_nearest(embeddings.blocks(), queries, top)
    return [Found(*row) for row in zip(titles, pictures, nearest)]


def find_groups(embeddings: Embeddings, least: float) -> list[Found]:
    """Return the near duplicates among images."""
    groups = find_near_duplicates(embeddings.vectors(), least)
    return [
        Found(f"Group {number}: {len(group):,} images", None, group)
        for number, group in enumerate(groups, start=1)
    ]


def show(found: Sequence[Found], embeddings: Embeddings, form: str):
    """Print the images, as lines for people or as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    if form == "csv":
        table.writerow(["similar_to", "cosine", "path", "label"])
    for entry in found:
        if form == "text":
            print(entry.title)
        for row, cosine in entry.images:
            path = embeddings.paths[row]
            label = show_label(embeddings.labels[row])
            if form == "csv":
                table.writerow([entry.title, f"{cosine:.6f}", path, label])
            else:
                print(f"  {cosine:.4f}  {path}  {label}".rstrip())
    if not found and form == "text":
        print("There are none.")


if __name__ == "__main__":
    run_main(main)
