"""Data sets of images with an answer for each pixel: `pairs:PATH`."""

import concurrent.futures
import dataclasses
import os
import random

import tensorflow as tf

from trainers.data.labels import SEGMENT, LabelOptions
from trainers.data.maps import IGNORED, MapRule, find_classes, read_numbers
from trainers.data.readers.csv_table import (
    PATH_COLUMNS,
    Files,
    find_column,
    find_fault,
    read_table,
)
from trainers.data.readers.folder import list_folders
from trainers.data.readers.image_files import ImageFiles, read_class_names
from trainers.data.readers.image_paths import (
    is_image_name,
    leave_out_unreadable,
    list_images,
    printable,
    split_by_content,
    walk,
    warn_of,
)
from trainers.data.splits import KNOWN_SPLITS, meaning_of

# The preferred names come first; of folders and, without an s, of columns: but
# for `label`, which is a class in other tables.
IMAGES = ("images", "imgs", "rgb")
OF_KIND = {
    "segment": (
        *("masks", "labels", "annotations", "segmentations"),
        "segmentation_maps",
    ),
    "depth": ("depths", "depth", "depth_maps"),
}
CLASSES_FILE = "classes.txt"
NUM_TRIED = 64  # Maps that are read to see whether they have classes.
NUM_THREADS = 16
NO_FILE = "is not there"
FORM = (
    "PATH/images and PATH/{maps} with files of the same names, or these two in "
    "each of PATH/train and PATH/test, or a table with the columns `image` and "
    "`{column}`"
)


@dataclasses.dataclass(frozen=True)
class PairFiles(ImageFiles):
    """Reads image files, each with the file of its map.

    Args:
        maps: How the numbers in the files become maps.
        class_names, files, pixels: See `ImageFiles`; in place of the label is
            the path of the map, where there may be no file.
    """

    maps: MapRule = MapRule(SEGMENT)

    def read(self, ranges):
        paths, maps = (
            tf.constant([os.fsencode(path) for path in paths])
            for paths in zip(*self._rows(ranges))
        )
        rows = tf.data.Dataset.from_tensor_slices((paths, maps))
        return rows.map(lambda path, map: (path, map, path))

    def load_map(self, label):
        """Return the map (H, W) of an example, see `MapRule.read`.

        Args:
            label: What `read` yields in place of a label, in NumPy.

        Raises:
            ValueError: Says which file cannot be read, and why.
        """
        path = os.fsdecode(label)
        try:
            with open(path, "rb") as file:
                return self.maps.read(file.read())
        except FileNotFoundError:
            reason = NO_FILE
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        except ValueError as error:
            reason = str(error)
        raise ValueError(f"{printable(path)} {reason}")

    def with_forms_of(self, class_names, may_be_part=False):
        return self  # The numbers of the classes are in the files.


def open_pairs(path: str, options: LabelOptions) -> PairFiles:
    """Return the reader of images and their maps, see FORM.

    Names of classes are in `classes.txt` beside the folders or the table, a
    line each, from that of class 0 on. Without it, all maps are read to count
    the classes, whose names are their numbers.

    Args:
        path: A folder, or a CSV table.
        options: How the maps are read.

    Raises:
        ValueError: If there are no images of this form, or no classes.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    if not options.has_maps:
        raise ValueError(
            "`dataset=pairs:PATH` needs --objective=segment or depth. "
            f"Received: dataset='pairs:{path}', labels={options.kind!r}"
        )
    find = _read_table if os.path.isfile(path) else _list_folder
    files = find(path, options.kind)
    for split, rows in files.items():
        files[split] = leave_out_unreadable(rows)
    if options.kind != SEGMENT:
        limits = options.depth_unit, options.max_depth
        return PairFiles([], files, maps=MapRule(options.kind, None, *limits))
    maps = [found for rows in files.values() for _, found in rows]
    folder = os.path.dirname(path) if os.path.isfile(path) else path
    names_path = os.path.join(folder, CLASSES_FILE)
    names = read_class_names(names_path) if os.path.isfile(names_path) else []
    if len(names) == 1:
        raise ValueError(
            f"`{CLASSES_FILE}` must have two names or more, a line each. "
            f"Received: {names_path!r} with 1 of them"
        )
    _check_classes(path, maps)
    if not names:
        names = [str(n) for n in range(find_classes(_read_all(maps))[-1] + 1)]
    return PairFiles(names, files, maps=MapRule(SEGMENT, len(names)))


def _check_classes(path, maps):
    """Raise a ValueError unless some maps have a class beside 0."""
    received = f"Received: PATH={path!r}, {len(maps)} maps"
    tried = random.Random(0).sample(maps, min(NUM_TRIED, len(maps)))
    has_ignored = has_classes = False
    for some in (tried, maps):  # Most images may lack what is looked for.
        found = set()
        for numbers in _read_all(some):
            has_classes |= numbers.dtype.kind in "iu"
            found.update(find_classes([numbers]).tolist())
            has_ignored |= bool((numbers == IGNORED).any())
        if found - {0}:
            return
    if maps and not has_classes:
        try:
            PairFiles([], {}).load_map(os.fsencode(maps[0]))
        except ValueError as error:
            raise ValueError(
                "`dataset=pairs:PATH` must have maps with classes. "
                f"{received}, of which {error}"
            ) from None
    advice = (
        f" and {IGNORED} alone, which stands for pixels that do not count; "
        "write 1 for the second class"
        if has_ignored
        else ""
    )
    raise ValueError(
        "`dataset=pairs:PATH` must have maps of two classes or more. "
        f"{received} of class 0{advice}"
    )


def _read_all(paths):
    """Yield the numbers of the maps that can be read."""

    def read(path):
        try:
            with open(path, "rb") as file:
                return read_numbers(file.read())
        except (OSError, ValueError):
            return None  # It is reported where it is used.

    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        for start in range(0, len(paths), NUM_TRIED):  # They are in memory.
            for numbers in pool.map(read, paths[start : start + NUM_TRIED]):
                if numbers is not None:
                    yield numbers


def _list_folder(path, kind):
    """Return the (image, map) pairs of each split of a folder."""
    folders = list_folders(path)
    images, maps = _find_both(folders, kind)
    if images:
        places = os.path.join(path, images), os.path.join(path, maps)
        splits = _common_splits(*places)
        if not splits:
            rows = _pair(*places)
            return _split(path, rows)
        found = {
            split: _pair(*(os.path.join(place, split) for place in places))
            for split in splits
        }
    else:
        found = {}
        for split in folders:
            place = os.path.join(path, split)
            images, maps = _find_both(list_folders(place), kind)
            if images:
                pair = os.path.join(place, images), os.path.join(place, maps)
                found[split] = _pair(*pair)
    if not any(found.values()):
        raise _not_of_the_form(path, kind)
    for split, rows in found.items():
        random.Random(split).shuffle(rows)
    return {split: rows for split, rows in found.items() if rows}


def _find_both(folders, kind):
    """Return the names of the folders of images and maps, or None twice."""
    by_name = {name.lower(): name for name in folders}
    images, maps = (
        next((by_name[name] for name in known if name in by_name), None)
        for known in (IMAGES, OF_KIND[kind])
    )
    return (images, maps) if images and maps else (None, None)


def _common_splits(images, maps):
    """Return the names of splits that both folders have, if all are splits."""
    folders = list_folders(images)
    if all(meaning_of(name) in KNOWN_SPLITS for name in folders):
        return [name for name in folders if name in list_folders(maps)]
    return []


def _pair(images, maps):
    """Return the images of a folder, each with the path of its map."""
    by_stem = {}
    for file in walk(maps):
        if is_image_name(file):
            other = by_stem.setdefault(_stem(file, maps), file)
            if other != file:
                raise ValueError(
                    "`dataset=pairs:PATH` must have one map an image. "
                    f"Received: {printable(other)} and {printable(file)}"
                )
    rows = []
    for file in list_images(images):
        stem = _stem(file, images)
        found = by_stem.pop(stem, None)
        rows.append((file, found or os.path.join(maps, f"{stem}.png")))
    if by_stem:
        warn_of(set(by_stem.values()), "map", "left out, without an image")
    return rows


def _stem(file, folder):
    return os.path.splitext(os.path.relpath(file, folder))[0]


def _split(path, rows):
    """Return the splits by content of images without any."""
    if not rows:
        return {}
    maps = dict(rows)
    files = split_by_content(
        [(file, "") for file in maps], f"pairs:{path}", least_classes=1
    )
    return {
        split: [(file, maps[file]) for file, _ in found]
        for split, found in files.items()
    }


def _read_table(path, kind):
    """Return the (image, map) pairs of each split of a CSV table."""
    columns = [x.removesuffix("s") for x in OF_KIND[kind] if x != "labels"]
    columns = [
        name
        for column in dict.fromkeys(columns)
        for name in (column, f"{column}_path", f"{column}_file")
    ]
    header, cells = read_table(path, "dataset=pairs:PATH", columns)
    of_path, of_map, of_split = (
        find_column(path, header, known)
        for known in (PATH_COLUMNS, columns, ("split",))
    )
    if not of_path or not of_map:
        raise _not_of_the_form(path, kind)
    files, rows = Files(os.path.dirname(os.path.abspath(path))), []
    for number, row in cells:
        image, found, split = (
            ((row[column] if column else None) or "").strip()
            for column in (of_path, of_map, of_split)
        )
        file = image and files.find(image)
        if not image or not found or (of_split and not split):
            fault = " has an empty cell"
        elif fault := find_fault(row, header.index(of_path), files):
            fault = f" {fault}"
        elif not file:
            where = printable(os.path.join(files.folder, image))
            fault = f": there is no file {where}{files.hint(image)}"
        if fault:
            raise ValueError(
                "`dataset=pairs:PATH` must have an existing image and a map "
                f"in each line. Received: PATH={path!r}: line {number}{fault}"
            )
        whole = files.find(found) or os.path.join(files.folder, found)
        rows.append((file, whole, split))
    _check_once(path, rows)
    if not any(split for *_, split in rows):
        return _split(path, [row[:2] for row in rows])
    result = {}
    for file, found, split in rows:
        result.setdefault(split, []).append((file, found))
    for split, pairs in result.items():
        random.Random(split).shuffle(pairs)
    return result


def _check_once(path, rows):
    seen = {}
    for file, found, split in rows:
        if seen.setdefault((file, split), found) != found:
            raise ValueError(
                "`dataset=pairs:PATH` must have one line an image. Received: "
                f"PATH={path!r} with {printable(file)} twice"
            )


def _not_of_the_form(path, kind):
    maps = OF_KIND[kind][0]
    form = FORM.format(maps=maps, column=maps.removesuffix("s"))
    found = "no such folder or file"
    if os.path.isdir(path):
        listed = ", ".join(list_folders(path)[:5])
        found = f"a folder with {listed or 'no folders'}"
        other = next(other for other in OF_KIND if other != kind)
        if all(_find_both(list_folders(path), other)):
            found += f", which --objective={other} reads"
    elif os.path.isfile(path):
        found = "a table without these columns"
    return ValueError(
        f"`dataset=pairs:PATH` must be {form}. Received: PATH={path!r}, {found}"
    )
