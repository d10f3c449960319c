"""Data sets in a folder of image files: `folder:PATH`."""

import collections
import os
import random
from collections.abc import Iterable

from trainers.data.content_split import split_by_content
from trainers.data.readers.image_paths import (
    IMAGE_ENDINGS,
    leave_out_hidden,
    leave_out_unreadable,
    list_images,
)
from trainers.data.split_names import KNOWN_SPLITS, find_split, meaning_of


def list_image_folder(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return (path, class) pairs of PATH/CLASS/IMAGE or PATH/SPLIT/CLASS/IMAGE.

    The pairs of each split are in a list. Without splits, `split_by_content`
    makes the splits `train` and `test`. An image may also be in a folder inside
    that of its class. The order of the images is random but always the same, so
    a slice of a split has images of all classes.

    Args:
        path: Path of the folder.

    Raises:
        ValueError: If there is no such folder, a split has no images, or there
            are neither splits nor two classes.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    if _has_splits(path):
        files = _list_splits(path)
    else:
        files = _list_classes(path)
        if not files:
            raise _not_of_the_form(path)
        _check_depth(path, files)
        files = split_by_content(files, f"folder:{path}")
    return files


def list_folders(path: str) -> list[str]:
    """Return the sorted names of the folders in `path`.

    Those that are hidden or left behind by systems are skipped.
    """
    if not os.path.isdir(path):
        return []
    names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    leave_out_hidden(names)
    return names


def _has_splits(path):
    """Return whether a folder with the name of a split has folders in it.

    Other names than the usual ones might be classes, unless all are splits.
    """
    folders = list_folders(path)
    splits = [name for name in folders if name in KNOWN_SPLITS]
    if all(meaning_of(name) in KNOWN_SPLITS for name in folders):
        splits = folders
    return any(list_folders(os.path.join(path, split)) for split in splits)


def _list_classes(path):
    """Return the (path, class) pairs of the images PATH/CLASS/IMAGE."""
    return leave_out_unreadable(
        [
            (file, label)
            for label in list_folders(path)
            for file in list_images(os.path.join(path, label))
        ]
    )


def _check_depth(path, files):
    """Raise a ValueError if the folders of the classes are one level lower."""
    labels = {label for _, label in files}
    if len(labels) > 1:
        return
    inside = os.path.join(path, *labels)
    folders = [
        name
        for name in list_folders(inside)
        if list_images(os.path.join(inside, name))
    ]
    if len(folders) > 1:
        raise ValueError(
            "`dataset=folder:PATH` must name the folder that has the folders "
            f"of the classes. Received: dataset='folder:{path}'; "
            f"folder:{inside} has {', '.join(map(repr, folders[:5]))}"
            + (", ..." if len(folders) > 5 else "")
        )


def _list_splits(path):
    """Return the pairs of each split of a folder PATH/SPLIT/CLASS/IMAGE."""
    found = {}
    for split in list_folders(path):
        rows = _list_classes(os.path.join(path, split))
        random.Random(split).shuffle(rows)
        if rows or meaning_of(split) in KNOWN_SPLITS:
            found[split] = rows
    if not find_split(found, KNOWN_SPLITS):
        raise _not_of_the_form(path)
    for split, rows in found.items():
        if not rows:
            raise ValueError(
                "`dataset=folder:PATH` must have images in each split. "
                f"Received: PATH={path!r} with no image in its split {split!r}"
            )
    return found


def list_empty_classes(path: str, class_names: Iterable[str]) -> list[str]:
    """Return the folders of classes without any image that can be read.

    Args:
        path: The PATH of `list_image_folder`.
        class_names: The classes of the images that it lists.

    Returns:
        Their names, sorted; with splits, of those that are empty in each.
    """
    path = os.path.expanduser(path)
    places = [path]
    if _has_splits(path):
        places = [os.path.join(path, split) for split in list_folders(path)]
    names = {name for place in places for name in list_folders(place)}
    return sorted(names.difference(class_names))


def list_loose_images(path: str) -> list[str]:
    """Return the images beside the folders of the classes, which are not read.

    Args:
        path: The PATH of `list_image_folder`.
    """
    path = os.path.expanduser(path)
    places = [path]
    if _has_splits(path):
        places += [os.path.join(path, split) for split in list_folders(path)]
    return sorted(
        entry.path
        for place in places
        for entry in os.scandir(place)
        if entry.name.lower().endswith(IMAGE_ENDINGS)
        and not entry.name.startswith(".")
        and entry.is_file()
    )


def count_other_files(path: str) -> dict[str, int]:
    """Return how many files in the folders of the classes are not read.

    Hidden files and those that systems leave behind do not count.

    Args:
        path: The PATH of `list_image_folder`.

    Returns:
        The numbers by ending, the most frequent first.
    """
    path = os.path.expanduser(path)
    counts = collections.Counter()
    for label in list_folders(path):
        for place, folders, files in os.walk(os.path.join(path, label)):
            leave_out_hidden(folders)
            counts.update(
                _describe_ending(os.path.join(place, name))
                for name in files
                if not name.startswith(".")
                and name.lower() not in FILES_OF_SYSTEMS
            )
    counts.pop("", None)
    return dict(counts.most_common())


def _describe_ending(path):
    """Return how a file that is not read ends; "" for an image."""
    if not os.path.isfile(path):
        return "links that lead nowhere"
    if path.lower().endswith(IMAGE_ENDINGS):
        return ""
    return os.path.splitext(path)[1].lower() or "no ending"


def _not_of_the_form(path):
    found = ", and there is no such folder"
    if os.path.isdir(path):
        names = [name.lower() for name in os.listdir(path)]
        count = sum(name.endswith(IMAGE_ENDINGS) for name in names)
        found = f", with {count:,} images that are in no class" if count else ""
    return ValueError(
        "`dataset=folder:PATH` must name a folder of the form "
        "PATH/CLASS/IMAGE.jpg, or PATH/train/CLASS/IMAGE.jpg and "
        f"PATH/test/CLASS/IMAGE.jpg. Received: PATH={path!r}{found}"
    )


FILES_OF_SYSTEMS = ("thumbs.db", "desktop.ini")
