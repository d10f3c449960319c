"""The callbacks of a job that draw pictures of test images.

In all functions `job` is a `Job`.
"""

from keras_vit.analysis.callbacks import AttentionPictures
from trainers.data.batches import eval_batches
from trainers.runs.reconstructions import NUM_DRAWN, Reconstructions


def attention_pictures(job) -> AttentionPictures:
    """Return the callback that draws attention to the first test images."""
    recipe = job.recipe
    return AttentionPictures(
        first_eval_images(job, recipe.log_attention),
        job.run.folder / "tensorboard",
        class_names=job.dataset.class_names,
        activation=recipe.activation,
        normalization=recipe.normalization,
        # The weights that are evaluated, and saved in the end.
        averages=lambda: job.loop.optimizer.averages,
        first_step=job.loop.step,
    )


def reconstructions(job) -> Reconstructions:
    """Return the callback that draws reconstructed test images."""
    return Reconstructions(
        first_eval_images(job, NUM_DRAWN),
        job.recipe.normalization,
        lambda: job.loop.optimizer.averages,
        job.run.folder / "tensorboard",
        job.run.folder / "reconstructions.png",
    )


def first_eval_images(job, count: int):
    """Return the first images of the evaluation split, preprocessed.

    Shapes: returns: (B, H, W, C), with at most `count` images.
    """
    batches = eval_batches(
        job.dataset,
        image_size=job.loop.model.input_shape[1:3],
        batch_size=count,
        preprocess=job.recipe.eval_preprocess,
        bad_examples=job.bad_examples,
    )
    with job.bad_examples.named_errors():
        images, _, weights = next(iter(batches))
    return images[weights > 0]
