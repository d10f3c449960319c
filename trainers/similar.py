"""Find the images that are most similar to photos, or to one another.

EMBEDDINGS is a folder that trainers.embed wrote.

Example:
    python -m trainers.similar EMBEDDINGS PHOTO... --out=similar.html
    python -m trainers.similar EMBEDDINGS --duplicates=0.95
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.similar")

import csv
import sys
from collections.abc import Sequence

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
    read_pictures,
)
from trainers.pages import page_path

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        folder, *words = arguments[1:] or [None]
        if folder is None or bool(words) == (FLAGS.duplicates is not None):
            raise ValueError(
                "Pass a folder of embeddings, and either photos or "
                f"--duplicates. Received: {' '.join(arguments[1:])!r}, "
                f"duplicates={FLAGS.duplicates}"
            )
        page = FLAGS.out and page_path(FLAGS.out)
        embeddings = open_embeddings(folder)
        if words:
            found = find_similar(embeddings, expand_folders(words), FLAGS.top)
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


def find_similar(
    embeddings: Embeddings, paths: Sequence[str], top: int
) -> list[Found]:
    """Return the images that are most similar to those of files.

    What else can be a vector, such as a text, is found in the same way.

    Args:
        embeddings: The images to search.
        paths: Image files.
        top: Number of images for each.
    """
    queries = embed_files(embeddings, paths)
    nearest = find_nearest(embeddings.blocks(), queries, top)
    return [
        Found(printable(path), draw_file(embeddings, path), images)
        for path, images in zip(paths, nearest)
    ]


def find_groups(embeddings: Embeddings, least: float) -> list[Found]:
    """Return the near duplicates among images.

    Args:
        embeddings: The images.
        least: The smallest cosine of a pair.
    """
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
