"""Write a page with the images of embeddings as points on a map.

EMBEDDINGS is a folder that trainers.embed wrote. The page is one file that
needs no network.

Example:
    python -m trainers.map EMBEDDINGS --out=map.html
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.map")

import os

import numpy as np
from absl import flags

from keras_vit.analysis.map_page import TILE_SIDE, write_map
from trainers.commands import run_main, stop_at_once, user_errors
from trainers.evaluation.embeddings import open_embeddings
from trainers.evaluation.projection import METHODS
from trainers.evaluation.similarity import show_label
from trainers.evaluation.vectors import read_pictures
from trainers.pages import page_path
from trainers.paths import RemotePath

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors(ModuleNotFoundError):
        if len(arguments) != 2:
            raise ValueError(
                "Pass one folder of embeddings. "
                f"Received: {' '.join(arguments[1:])!r}"
            )
        page = page_path(FLAGS.out)
        if isinstance(page, RemotePath):
            raise ValueError(
                "`out` must be a file on this machine. "
                f"Received: out={FLAGS.out!r}"
            )
        embeddings = open_embeddings(arguments[1])
        rows = np.arange(len(embeddings))
        if len(rows) > FLAGS.most_images:
            random = np.random.default_rng(0)
            rows = random.choice(rows, FLAGS.most_images, replace=False)
            rows.sort()
        points = METHODS[FLAGS.method](embeddings, rows)
        pictures = read_pictures(embeddings, rows, TILE_SIDE)
        part = f"{len(rows):,} of " if len(rows) < len(embeddings) else ""
        (source,) = embeddings.description["source"].values()
        if os.path.exists(source):  # The page may be for others.
            source = os.path.basename(source)
        write_map(
            page,
            points,
            [embeddings.paths[row] for row in rows],
            [show_label(embeddings.labels[row]) or None for row in rows],
            {
                place: pictures[row]
                for place, row in enumerate(rows.tolist())
                if row in pictures
            },
            summary=(
                f"{part}{len(embeddings):,} pictures, vectors of "
                f"{source}, {FLAGS.method.upper()}."
            ),
        )
        print(f"Page: {page}, {page.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    run_main(main)
