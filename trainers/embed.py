"""Write the vectors of images to a folder, with the model of a run or another.

Killed and started again, the command goes on where it was.

Example:
    python -m trainers.embed --run_dir=saved_models/digits --out=vectors
    python -m trainers.embed --model=B/16-augreg --out=vectors FOLDER
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.embed")

from absl import flags

from keras_vit.tables import list_first
from trainers.commands import (
    cluster_from_flags,
    open_source,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.data.datasets import ALL_SPLITS
from trainers.data.labels import LabelOptions
from trainers.evaluation.embeddings import open_embeddings
from trainers.evaluation.file_predictions import expand_folders
from trainers.evaluation.vectors import embed, open_files
from trainers.paths import RemotePath, as_path
from trainers.training.run_folder import NamedModel, RunFolder

FLAGS = flags.FLAGS


def open_images(words: list[str]):
    """Return the model and the images, of files or of a data set."""
    if not words:
        if FLAGS.model and not FLAGS.run_dir and not FLAGS.dataset:
            raise ValueError(
                "Give image files, folders or --dataset with --model. "
                f"Received: model={FLAGS.model!r}, dataset=None, no files"
            )
        return open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            eval_split=FLAGS.split or ALL_SPLITS,
            labels=LabelOptions(FLAGS.labels, FLAGS.label_separator),
        )
    if FLAGS.dataset or FLAGS.split:
        raise ValueError(
            "Give either files or --dataset and --split. Received: "
            f"dataset={FLAGS.dataset!r}, split={FLAGS.split!r}, "
            f"{' '.join(words)}"
        )
    if bool(FLAGS.run_dir) == bool(FLAGS.model):
        raise ValueError(
            "Give either --run_dir or --model. Received: "
            f"run_dir={FLAGS.run_dir!r}, model={FLAGS.model!r}"
        )
    source = NamedModel(FLAGS.model)
    if FLAGS.run_dir:
        source = RunFolder(as_path(FLAGS.run_dir))
    return source, open_files(expand_folders(words), source)


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped; the same command goes on."), user_errors():
        cluster = cluster_from_flags()
        source, dataset = open_images(arguments[1:])
        recipe = source.load_recipe()
        folder = as_path(FLAGS.out)
        unreadable = embed(
            source,
            dataset,
            folder,
            vector=FLAGS.vector,
            dtype=FLAGS.dtype,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            max_bad_examples=FLAGS.max_bad_examples,
            shard_rows=FLAGS.shard_rows,
            data_dir=FLAGS.data_dir or (recipe.data_dir if recipe else None),
            cluster=cluster,
        )
        if unreadable:
            print(f"Left out, unreadable: {list_first(unreadable, 10)}")
        if isinstance(folder, RemotePath):
            print(f"Embeddings: {folder}")
            return
        embeddings = open_embeddings(folder)
        print(
            f"Embeddings: {folder}, {len(embeddings):,} vectors of "
            f"{' x '.join(map(str, embeddings.description['shape']))} "
            f"{FLAGS.dtype} in {len(embeddings.shards):,} files"
        )


if __name__ == "__main__":
    run_main(main)
