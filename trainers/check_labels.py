"""Find labels that are probably wrong, among the images of embeddings.

EMBEDDINGS is a folder that trainers.embed wrote. The table that is written
has all images, the most suspicious first: correct its column `label`, and
--dataset=csv:PATH reads it.

Example:
    python -m trainers.check_labels EMBEDDINGS --out=checked
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.check_labels")

from absl import flags

from trainers.commands import run_main, stop_at_once, user_errors
from trainers.evaluation.embeddings import open_embeddings
from trainers.evaluation.label_check import (
    MOST_SHOWN,
    check_labels,
    describe,
    read_classes,
    write_label_page,
    write_label_table,
)
from trainers.evaluation.vectors import read_pictures
from trainers.paths import as_path, check_folder, check_writable

FLAGS = flags.FLAGS
TABLE, PAGE = "labels.csv", "suspects.html"


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        if len(arguments) != 2:
            raise ValueError(
                "Pass one folder of embeddings. "
                f"Received: {' '.join(arguments[1:])!r}"
            )
        out = as_path(FLAGS.out)
        check_folder(out, "out")
        check_writable(out, "out")
        if (out / TABLE).exists():
            raise ValueError(
                f"`out` must be a folder without a {TABLE}, which somebody "
                f"may have corrected. Received: out={FLAGS.out!r}"
            )
        embeddings = open_embeddings(arguments[1])
        classes, names = read_classes(embeddings)
        found = check_labels(
            embeddings.vectors(), classes, len(names), FLAGS.neighbors
        )
        print(describe(found))
        out.mkdir(parents=True, exist_ok=True)
        write_label_table(out / TABLE, embeddings, found)
        print(f"Table: {out / TABLE}")
        suspects = [int(x) for x in found.order if found.are_suspects[x]]
        shown = suspects[:MOST_SHOWN]
        pictures = read_pictures(embeddings, shown)
        write_label_page(out / PAGE, embeddings, found, shown, pictures)
        print(f"Page: {out / PAGE}")


if __name__ == "__main__":
    run_main(main)
