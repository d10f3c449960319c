"""Check the images of a data set, and show them on a page.

Example:
    python -m trainers.inspect_data folder:photos --out=seen
"""

import sys

from absl import flags

from keras_vit.tables import format_table
from trainers.data.bad_examples import BadExamples
from trainers.data.datasets import open_dataset
from trainers.data.inspection.findings import count_classes, find
from trainers.data.inspection.inspecting import inspect_images
from trainers.data.inspection.page import write_data_page
from trainers.data.inspection.unread import find_unread
from trainers.paths import as_path, check_folder, check_writable
from trainers.runs.command_line import run_main, stop_at_once, user_errors

FLAGS = flags.FLAGS
NUM_ROWS = 50


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        if len(arguments) != 2:
            raise ValueError(
                "Pass one data set, such as folder:photos. "
                f"Received: {' '.join(arguments[1:])!r}"
            )
        dataset = open_dataset(
            arguments[1], FLAGS.data_dir, FLAGS.train_split, FLAGS.eval_split
        )
        if FLAGS.out:  # Before the work.
            check_folder(as_path(FLAGS.out), "out")
            check_writable(as_path(FLAGS.out), "out")
        with BadExamples().named_errors():
            images = inspect_images(dataset)
        names = dataset.class_names
        findings = find(images, names, find_unread(dataset))
        print(describe_counts(images, names))
        print("\n".join(map(str, findings)) or "Nothing was found.")
        if FLAGS.out:
            folder = as_path(FLAGS.out)
            folder.mkdir(parents=True, exist_ok=True)
            page = folder / "index.html"
            write_data_page(page, dataset.name, images, names, findings)
            print(f"Page: {page}")
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)


def describe_counts(images, class_names) -> str:
    """Return the number of images of each class as a table."""
    counts = count_classes(images, class_names)
    rows = [
        [name, *(f"{numbers[name]:,}" for numbers in counts.values())]
        for name in class_names[:NUM_ROWS]
    ]
    table = format_table(["class", *counts], rows)
    more = len(class_names) - NUM_ROWS
    return table + (f"\nand {more:,} more classes" if more > 0 else "")


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string(
        "out", None, "Folder for a page with the findings and the images."
    )
    flags.DEFINE_string(
        "data_dir", None, "Folder of the data sets of tensorflow-datasets."
    )
    for split in ("train_split", "eval_split"):
        flags.DEFINE_string(
            split, None, "Split to check. Default: that of the data set."
        )


if __name__ == "__main__":
    define_flags()
    run_main(main)
