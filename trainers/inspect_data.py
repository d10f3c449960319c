"""Check the images of a data set, and show them on a page.

Example:
    python -m trainers.inspect_data folder:photos --out=seen
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.inspect_data")

import collections
import sys

from absl import flags

from keras_vit.tables import format_table
from trainers.commands import run_main, stop_at_once, user_errors
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExamples
from trainers.data.inspection import (
    TITLE_BEGINNING,
    count_classes,
    count_label_sets,
    find,
    find_unread,
    inspect_images,
    write_data_page,
)
from trainers.data.labels import LabelOptions
from trainers.data.pixels import PixelOptions, parse_pixel_range
from trainers.paths import Path, as_path, check_folder, check_writable

FLAGS = flags.FLAGS
NUM_ROWS = 50
PAGE = "index.html"


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        names = [*arguments[1:], *filter(None, [FLAGS.dataset])]
        if len(names) != 1:
            raise ValueError(
                "Pass one data set, such as folder:photos. "
                f"Received: {' '.join(names)!r}"
            )
        kind = FLAGS.objective or FLAGS.labels
        dataset = open_dataset(
            names[0],
            FLAGS.data_dir,
            FLAGS.train_split,
            FLAGS.eval_split,
            LabelOptions(kind, FLAGS.label_separator, FLAGS.depth_unit),
            PixelOptions(FLAGS.channels, parse_pixel_range(FLAGS.pixel_range)),
        )
        if FLAGS.out:  # Before the work.
            check_out(as_path(FLAGS.out))
        with BadExamples().named_errors():
            images = inspect_images(dataset)
        names = dataset.class_names
        findings = find(images, names, find_unread(dataset))
        print(describe_counts(images, names))
        print("\n".join(map(str, findings)) or "Nothing was found.")
        if FLAGS.out:
            folder = as_path(FLAGS.out)
            folder.mkdir(parents=True, exist_ok=True)
            page = folder / PAGE
            write_data_page(page, dataset.name, images, names, findings)
            print(f"Page: {page}")
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)


def check_out(folder: Path):
    """Raise an error unless a page can be written to a folder.

    Raises:
        ValueError: If it is a file, or has a page of something else.
        OSError: If it cannot be written.
    """
    check_folder(folder, "out")
    check_writable(folder, "out")
    page = folder / PAGE
    if page.exists() and TITLE_BEGINNING.encode() not in page.read_bytes():
        raise ValueError(
            "`out` must be a folder without a page of something else. "
            f"Received: out={str(folder)!r}, which has an {PAGE}"
        )


def describe_counts(images, class_names) -> str:
    """Return the number of images of each class, and of labels, as tables.

    Without classes, that of each split.
    """
    if not class_names:
        splits = collections.Counter(image.split for image in images)
        rows = [[split, f"{n:,}"] for split, n in splits.items()]
        return format_table(["split", "images"], rows)
    counts = count_classes(images, class_names)
    rows = [
        [name, *(f"{numbers[name]:,}" for numbers in counts.values())]
        for name in class_names[:NUM_ROWS]
    ]
    table = format_table(["class", *counts], rows)
    more = len(class_names) - NUM_ROWS
    tables = [table + (f"\nand {more:,} more classes" if more > 0 else "")]
    for title, numbers in count_label_sets(images).items():
        rows = [[name, f"{n:,}"] for name, n in numbers.items()]
        tables.append(format_table([title, "images"], rows))
    return "\n\n".join(tables)


if __name__ == "__main__":
    run_main(main)
