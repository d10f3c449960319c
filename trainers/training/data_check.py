"""Checking the images of a run before its first update."""

import dataclasses
import shlex

from trainers.data.inspection import (
    Finding,
    find,
    find_unread,
    inspect_images,
    judge_labels,
    write_data_page,
)
from trainers.data.readers.image_files import ImageFiles
from trainers.recipes.recipe import Recipe
from trainers.training.trainer import Trainer

MOST_CHECKED = 1000  # Reading more takes minutes.


def check_images(trainer: Trainer):
    """Check the images of a new run, or new images, and print the findings.

    Writes `data.html` into the folder of the run, a page with the findings and
    the images. Up to MOST_CHECKED images are checked, unless any of several
    classes is right for one.

    Args:
        trainer: The run, before it starts.

    Raises:
        ValueError: If a class of image files has none in a split, or more
            images are unreadable than allowed.
        DataError: If a file of records is damaged.
    """
    dataset = trainer.dataset
    is_known = trainer.loop.step and not trainer.has_other_images
    has_alternatives = (
        dataset.has_several_classes(dataset.train_split)
        and not dataset.has_several_labels
    )
    if is_known or has_alternatives:
        return
    splits = (dataset.train_split, dataset.eval_split)
    number = sum(dataset.num_examples(split) for split in splits)
    unread = find_unread(dataset)
    if number > MOST_CHECKED:
        findings = [*judge_labels(dataset), *unread]
        for finding in findings:
            print(finding)
        print(
            f"{number:,} images: not checked. To check them, run python -m "
            f"trainers.inspect_data {describe_data(trainer.recipe)} --out=DIR"
        )
        stop_on_errors(findings, trainer.recipe.max_bad_examples)
        return
    print(f"Checking {number:,} images:")
    with trainer.bad_examples.named_errors():
        images = inspect_images(dataset)
    is_balanced = trainer.recipe.class_weights == "balanced"
    findings = find(images, dataset.class_names, unread, is_balanced)
    if not isinstance(dataset.reader, ImageFiles):
        findings = [allow_missing(finding) for finding in findings]
    trainer.run.folder.mkdir(parents=True, exist_ok=True)
    page = trainer.run.folder / "data.html"
    write_data_page(page, dataset.name, images, dataset.class_names, findings)
    for finding in findings:
        if finding.level != "note":
            print(finding)
    print(f"Images and findings: {page}", flush=True)
    stop_on_errors(findings, trainer.recipe.max_bad_examples)


def describe_data(recipe: Recipe) -> str:
    """Return the arguments with which `trainers.inspect_data` reads the data.

    Example:
        >>> describe_data(Recipe(dataset="folder:my photos", data_dir="d"))
        "'folder:my photos' --data_dir=d"
    """
    words = [recipe.dataset]
    names = ("data_dir", "train_split", "eval_split", "label_separator")
    for name in names:
        value = getattr(recipe, name)
        words += [f"--{name}={value}"] if value else []
    if recipe.labels == "several":
        words.append("--labels=several")
    return shlex.join(words)


def allow_missing(finding: Finding) -> Finding:
    """Return a finding that does not stop if it is of a class without images.

    Data sets of TFDS and of records declare their classes, and a slice of a
    split may have no images of some.
    """
    if finding.groups or finding.level != "error":
        return finding
    return dataclasses.replace(finding, level="warning")


def stop_on_errors(findings: list[Finding], max_bad_examples: int):
    """Raise a ValueError unless training is possible.

    Args:
        findings: What was found.
        max_bad_examples: Number of unreadable images that are skipped.
    """
    errors = [finding for finding in findings if finding.level == "error"]
    bad = sum(len(group) for finding in errors for group in finding.groups)
    missing = [finding.text for finding in errors if not finding.groups]
    if bad > max_bad_examples:
        missing.append(
            f"{bad} images are unreadable; --max_bad_examples={bad} skips them"
        )
    if missing:
        raise ValueError(
            f"`dataset` must have readable images of each class: "
            f"{'; '.join(missing)}"
        )
