"""What a model decides by: the thresholds of several labels."""

import numpy as np

from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.evaluation.label_scores import choose_thresholds, sigmoid
from trainers.evaluation.predictions import predict_dataset
from trainers.training.run_folder import RunFolder


def calibrate(
    run: RunFolder,
    dataset: ImageDataset,
    goal: str = "f1",
    *,
    batch_size: int = 128,
    bad_examples: BadExamples | None = None,
) -> list[float]:
    """Choose the thresholds of a run's labels, and save them in it.

    Args:
        run: A finished run whose images may have several labels.
        dataset: Its data set; the evaluation split is read.
        goal: See `choose_thresholds`.
        batch_size: Number of images per batch.
        bad_examples: See `predict_dataset`.

    Returns:
        The least probability of each label that is given.

    Raises:
        ValueError: If the goal is unknown, or the images cannot be read.
    """
    rows = [
        (logits, labels)
        for _, logits, labels, *_ in predict_dataset(
            run.load_model(),
            dataset,
            batch_size=batch_size,
            preprocess=run.preprocess,
            bad_examples=bad_examples,
        )
    ]
    logits, labels = map(np.concatenate, zip(*rows))
    thresholds = choose_thresholds(sigmoid(logits), labels, goal)
    run.save_thresholds(thresholds)
    return thresholds
