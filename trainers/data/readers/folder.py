"""Data sets in a folder of image files: `folder:PATH`."""

import collections
import os
import random
import unicodedata
import warnings
from collections.abc import Iterable

from trainers.data.labels import AUTO, LabelOptions, merge_rows
from trainers.data.readers.image_paths import (
    is_image_name,
    leads_nowhere,
    leave_out_hidden,
    leave_out_unreadable,
    list_images,
    place_by_content,
    split_by_content,
    walk,
)
from trainers.data.splits import (
    EVAL_SPLITS,
    KNOWN_SPLITS,
    TRAIN_SPLITS,
    find_split,
    meaning_of,
)


def list_image_folder(
    path: str, options: LabelOptions = AUTO
) -> dict[str, list[tuple]]:
    """Return (path, label) pairs of PATH/CLASS/IMAGE or PATH/SPLIT/CLASS/IMAGE.

    The pairs of each split are in a list. Without splits, `split_by_content`
    makes the splits `train` and `test`. An image may also be in a folder inside
    that of its class, or in one that is linked there. The order of the images
    is random but always the same, so a slice of a split has images of all
    classes. A split to evaluate on whose images are in no class of the others
    is left out with a warning, if there is another.

    Args:
        path: Path of the folder.
        options: How the labels are read. Of several labels, files of equal
            content in several classes of a split are one image of all of them.

    Raises:
        ValueError: If there is no such folder, a split has no images of the
            classes, or there are neither splits nor two classes.
        OSError: If a file cannot be read.
    """
    path, has_several = os.path.expanduser(path), options.kind == "several"
    if _has_splits(path):
        files = _list_splits(path)
        if has_several:
            for split, rows in files.items():
                contents = place_by_content([path for path, _ in rows])
                files[split] = merge_rows(rows, contents)
    else:
        files = _list_classes(path)
        if not files:
            raise _not_of_the_form(path)
        _check_depth(path, files)
        _check_is_no_split(path, {label for _, label in files})
        name = f"folder:{path}"
        files = split_by_content(
            files, name, joins_copies=has_several, is_whole=options.is_whole
        )
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
    rows = [
        (file, label)
        for label in list_folders(path)
        for file in list_images(os.path.join(path, label))
    ]
    rows += [(os.path.join(path, name), name) for name in _broken_links(path)]
    return leave_out_unreadable(rows)


def _broken_links(path):
    """Return the names of links in `path` that would be classes."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return [
        name
        for name in names
        if not is_image_name(name) and leads_nowhere(os.path.join(path, name))
    ]


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


def _check_is_no_split(path, labels):
    """Tell the folder of a split, whose images are in no class, from a class.

    Raises:
        ValueError: If all classes have names of splits.
    """
    if all(meaning_of(label) in KNOWN_SPLITS for label in labels):
        raise ValueError(
            "`dataset=folder:PATH` must have folders of classes in those of "
            f"its splits. Received: PATH={path!r}, with images that are in no "
            f"class in {' and '.join(map(repr, sorted(labels)))}; csv:PATH "
            "reads the classes from a table"
        )
    for label in sorted(labels):
        if meaning_of(label) == "test":
            warnings.warn(
                f"{label!r} beside the folders of other classes is read as a "
                "class; move it elsewhere if the classes of its images are "
                "unknown",
                stacklevel=2,
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
    return _leave_out_unknown(path, found)


def _leave_out_unknown(path, found):
    """Return the splits whose images are in the classes of the training."""
    train = find_split(found, TRAIN_SPLITS)
    known = {label for _, label in found.get(train, [])}
    for split, rows in list(found.items()):
        labels = {label for _, label in rows}
        is_for_training = meaning_of(split) in TRAIN_SPLITS
        if rows and (is_for_training or not known or labels & known):
            continue
        place = os.path.join(path, split)
        fault = f"no image in its split {split!r}"
        if any(map(is_image_name, walk(place))):
            which = "no class" if not rows else "no class of the training"
            fault = f"images in its split {split!r} that are in {which}"
        others = {name: rows for name, rows in found.items() if name != split}
        if known and find_split(others, EVAL_SPLITS) and not is_for_training:
            warnings.warn(f"{place} is left out: {fault}", stacklevel=2)
            del found[split]
            continue
        advice = ""
        if len(known) > 1:
            place = os.path.join(path, train)
            advice = (
                f"; folder:{place} has classes, and a part of it will be for "
                "testing"
            )
        raise ValueError(
            "`dataset=folder:PATH` must have images of the classes in each "
            f"split. Received: PATH={path!r} with {fault}{advice}"
        )
    return found


def list_empty_classes(path: str, class_names: Iterable[str]) -> list[str]:
    """Return the folders of classes without any image that can be read.

    Returns:
        Their names, sorted; with splits, of those that are empty in each.
    """
    path = os.path.expanduser(path)
    places = [path]
    if _has_splits(path):
        places = [os.path.join(path, split) for split in list_folders(path)]
    names = {
        name
        for place in places
        for name in [*list_folders(place), *_broken_links(place)]
    }
    read = {unicodedata.normalize("NFC", name) for name in class_names}
    return sorted(
        name for name in names if unicodedata.normalize("NFC", name) not in read
    )


def list_loose_images(path: str) -> list[str]:
    """Return the images beside the folders of classes, which are not read."""
    path = os.path.expanduser(path)
    places = [path]
    if _has_splits(path):
        places += [os.path.join(path, split) for split in list_folders(path)]
    return sorted(
        entry.path
        for place in places
        for entry in os.scandir(place)
        if is_image_name(entry.name)
        and not entry.name.startswith(".")
        and entry.is_file()
    )


def count_other_files(path: str) -> dict[str, int]:
    """Return how many files in the folders of the classes are not read.

    Hidden files and those that systems leave behind do not count.

    Returns:
        The numbers by ending, the most frequent first.
    """
    path = os.path.expanduser(path)
    counts = collections.Counter()
    for label in list_folders(path):
        counts.update(
            _describe_ending(file)
            for file in walk(os.path.join(path, label))
            if os.path.basename(file).lower() not in FILES_OF_SYSTEMS
        )
    counts.pop("", None)
    return dict(counts.most_common())


def _describe_ending(path):
    """Return how a file that is not read ends; "" for an image."""
    if not os.path.isfile(path):
        return "links that lead nowhere"
    if is_image_name(path):
        return ""
    return os.path.splitext(path)[1].lower() or "no ending"


def _not_of_the_form(path):
    found = ", and there is no such folder"
    if os.path.isdir(path):
        count = sum(map(is_image_name, os.listdir(path)))
        found = f", with {count:,} images that are in no class" if count else ""
    return ValueError(
        "`dataset=folder:PATH` must name a folder of the form "
        "PATH/CLASS/IMAGE.jpg, or PATH/train/CLASS/IMAGE.jpg and "
        f"PATH/test/CLASS/IMAGE.jpg. Received: PATH={path!r}{found}"
    )


FILES_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "icon\r")


# The one class of all images.
UNLABELLED = "unlabelled"


def list_unlabelled_images(
    path: str, options: LabelOptions = AUTO
) -> dict[str, list[tuple[str, str]]]:
    """Return (path, UNLABELLED) pairs of all images in a folder.

    Images in folders inside it are included, whatever these are called. The
    splits `train` and `test` are those of `split_by_content`.

    Args:
        path: Path of the folder.
        options: Not used.

    Raises:
        ValueError: If there are not two different images.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    rows = [(file, UNLABELLED) for file in list_images(path)]
    rows = leave_out_unreadable(rows)
    if not rows:
        raise ValueError(
            "`dataset=images:PATH` must name a folder with images in it or in "
            f"folders inside it. Received: PATH={path!r}"
        )
    return split_by_content(rows, f"images:{path}", least_classes=1)
