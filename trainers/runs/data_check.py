"""Checking the images of a run before its first update."""

from trainers.data.inspection.findings import Finding, find
from trainers.data.inspection.inspecting import inspect_images
from trainers.data.inspection.page import write_data_page
from trainers.data.readers.image_files import ImageFiles
from trainers.runs.job import Job

MOST_CHECKED = 1000  # Reading more takes minutes.


def check_images(job: Job):
    """Print what is wrong with the image files of a new run.

    Writes `data.html` into the folder of the run, a page with the findings and
    the images. Only files are checked, and only up to MOST_CHECKED of them.

    Args:
        job: The run, before it starts.

    Raises:
        ValueError: If a class has no images in a split, or more images are
            unreadable than allowed.
    """
    dataset = job.dataset
    if not isinstance(dataset.reader, ImageFiles) or job.loop.step:
        return
    splits = (dataset.train_split, dataset.eval_split)
    number = sum(dataset.num_examples(split) for split in splits)
    if number > MOST_CHECKED:
        print(
            f"{number:,} images: not checked. To check them, run python -m "
            f"trainers.inspect_data '{dataset.name}' --out=DIR"
        )
        return
    print(f"Checking {number:,} images:")
    images = inspect_images(dataset)
    findings = find(images, dataset.class_names)
    job.run.folder.mkdir(parents=True, exist_ok=True)
    page = job.run.folder / "data.html"
    write_data_page(page, dataset.name, images, dataset.class_names, findings)
    for finding in findings:
        if finding.level != "note":
            print(finding)
    print(f"Images and findings: {page}", flush=True)
    stop_on_errors(findings, job.recipe.max_bad_examples)


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
