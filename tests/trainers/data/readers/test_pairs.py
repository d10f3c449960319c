"""Images with files of maps: folders, tables, classes and what is refused."""

import numpy as np
import pytest
from PIL import Image

from tests.trainers.made import write_pairs
from trainers.data.datasets import open_dataset
from trainers.data.labels import LabelOptions
from trainers.data.maps import MapRule
from trainers.data.readers import pairs
from trainers.data.readers.pairs import PairFiles, open_pairs

SEGMENT, DEPTH = LabelOptions("segment"), LabelOptions("depth")


def save(path, numbers, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(numbers), mode).save(path)
    return path


def names_of(reader):
    """Return the names of the images and of their maps, by split."""
    return {
        split: {
            file.rpartition("/")[2]: found.rpartition("/")[2]
            for file, found in rows
        }
        for split, rows in reader.files.items()
    }


def test_a_folder_without_splits_is_split_by_content(tmp_path):
    reader = open_pairs(str(write_pairs(tmp_path)), SEGMENT)
    names = names_of(reader)
    assert set(names) == {"train", "test"}
    both = names["train"] | names["test"]
    assert both == {f"{n}.png": f"{n}.png" for n in range(10)}
    assert reader.class_names == ["0", "1", "2"]
    # Other names of the folders: their splits are the same.
    (tmp_path / "masks").rename(tmp_path / "Annotations")
    assert names_of(open_pairs(str(tmp_path), SEGMENT)) == names


@pytest.mark.parametrize("is_outside", [True, False])
def test_splits_are_folders_around_or_inside_of_both(tmp_path, is_outside):
    for split, count in (("train", 4), ("val", 2)):
        made = write_pairs(tmp_path / "made" / split, count=count)
        for kind in ("images", "masks"):
            parts = (split, kind) if is_outside else (kind, split)
            place = tmp_path.joinpath("data", *parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            (made / kind).rename(place)
    reader = open_pairs(str(tmp_path / "data"), SEGMENT)
    assert {n: len(x) for n, x in names_of(reader).items()} == {
        "train": 4,
        "val": 2,
    }


def test_folders_inside_are_the_same_for_both(tmp_path):
    for place in ("images/a/x.jpg", "images/b/x.jpg"):
        save(tmp_path / place, np.full((4, 4, 3), len(place), "uint8"))
    for place, label in (("masks/a/x.png", 1), ("masks/b/x.png", 2)):
        save(tmp_path / place, np.full((4, 4), label, "uint8"))
    save(tmp_path / "images/a/y.jpg", np.full((4, 4, 3), 99, "uint8"))
    save(tmp_path / "masks/z.png", np.zeros((4, 4), "uint8"))
    with pytest.warns(UserWarning, match="1 map is left out.*z.png"):
        reader = open_pairs(str(tmp_path), SEGMENT)
    rows = dict(sum(reader.files.values(), []))
    for name in "ab":
        path = rows[str(tmp_path / f"images/{name}/x.jpg")]
        assert path == str(tmp_path / f"masks/{name}/x.png")
    twin = save(tmp_path / "masks/a/x.tif", np.zeros((4, 4), "uint8"))
    with pytest.raises(ValueError, match="one map an image.*x.* and .*x"):
        open_pairs(str(tmp_path), SEGMENT)
    twin.unlink()
    # The missing one is noticed where it is read.
    missing = rows[str(tmp_path / "images/a/y.jpg")]
    with pytest.raises(ValueError, match="a/y.png is not there"):
        reader.load_map(missing.encode())


def test_a_table_names_both(tmp_path):
    write_pairs(tmp_path, count=4)
    lines = [
        f"images\\{n}.png;masks/{n};{'train' if n < 3 else 'test'}"
        for n in range(4)
    ]
    table = tmp_path / "pairs.csv"
    table.write_text("Image;Mask Path;split\n" + "\n".join(lines))
    (tmp_path / "classes.txt").write_text("floor\nred\ngreen\nnever\n")
    reader = open_pairs(str(table), SEGMENT)
    assert names_of(reader) == {
        "train": {f"{n}.png": f"{n}.png" for n in range(3)},
        "test": {"3.png": "3.png"},
    }
    assert reader.class_names == ["floor", "red", "green", "never"]
    table.write_text("image,mask\nimages/9.png,masks/9.png\n")
    with pytest.raises(ValueError, match="line 2.*there is no file"):
        open_pairs(str(table), SEGMENT)
    twice = "images/1.png,masks/1.png\nimages/1.png,masks/2.png\n"
    table.write_text("image,mask\n" + twice)
    with pytest.raises(ValueError, match="one line an image.*1.png twice"):
        open_pairs(str(table), SEGMENT)
    lines = [f"images/{n}.png,masks/{n}.png," for n in range(4)]
    table.write_text("image,mask,size\n" + '"12 inch\n'.join(lines))
    with pytest.raises(ValueError, match="quote that is not closed.*s/1.png"):
        open_pairs(str(table), SEGMENT)
    table.write_text("image,label\nimages/1.png,cat\n")
    with pytest.raises(ValueError, match="without these columns"):
        open_pairs(str(table), SEGMENT)


def test_masks_of_0_and_255_are_refused(tmp_path):
    """255 does not count, so nothing would be left but class 0."""
    for n in range(3):
        save(tmp_path / f"images/{n}.png", np.full((4, 4, 3), n, "uint8"))
        save(tmp_path / f"masks/{n}.png", np.uint8([[0, 255], [0, 0]]))
    with pytest.raises(ValueError, match="write 1 for the second class"):
        open_pairs(str(tmp_path), SEGMENT)
    save(tmp_path / "masks/2.png", np.uint8([[0, 0], [0, 1]]))
    assert open_pairs(str(tmp_path), SEGMENT).class_names == ["0", "1"]


@pytest.mark.parametrize("place", range(3))
def test_a_class_may_be_in_a_single_map(place, tmp_path, monkeypatch):
    """Whichever map is read first."""
    monkeypatch.setattr(pairs, "NUM_TRIED", 1)
    for n in range(3):
        save(tmp_path / f"images/{n}.png", np.full((4, 4, 3), n, "uint8"))
        save(tmp_path / f"masks/{n}.png", np.uint8([[0, 255, n == place]]))
    assert open_pairs(str(tmp_path), SEGMENT).class_names == ["0", "1"]


def test_masks_of_colours_alone_are_refused_as_such(tmp_path):
    for n in range(3):
        for name in ("images", "masks"):
            pixels = np.uint8([[[n, 0, 0], [0, 9, 0]]])
            save(tmp_path / name / f"{n}.png", pixels)
    with pytest.raises(ValueError, match="3 maps, of which .* has colours"):
        open_pairs(str(tmp_path), SEGMENT)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("a\n", "1 of them"), ("a\n\nb", "an empty line"), ("a\nb\na", "twice")],
)
def test_classes_must_be_two_names_or_more(tmp_path, text, fault):
    (write_pairs(tmp_path) / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match=f"`classes.txt`.*{fault}"):
        open_pairs(str(tmp_path), SEGMENT)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        open_pairs(str(tmp_path / "none"), SEGMENT)
    write_pairs(tmp_path, "depth")
    with pytest.raises(
        ValueError, match="depths, images, which --objective=depth"
    ):
        open_pairs(str(tmp_path), SEGMENT)
    with pytest.raises(ValueError, match="--objective=segment or depth"):
        open_dataset(f"pairs:{tmp_path}")
    with pytest.raises(
        ValueError, match="`dataset` must have images and a map"
    ):
        open_dataset("digits", labels=DEPTH)
    reader = open_pairs(str(tmp_path), DEPTH)
    assert isinstance(reader, PairFiles)
    assert reader.class_names == []


@pytest.fixture
def read(tmp_path):
    def read(numbers, rule=None, mode=None, ending="png"):
        rule = rule or MapRule("segment", 3)
        path = save(tmp_path / f"map.{ending}", numbers, mode)
        return rule.read(path.read_bytes())

    return read


def test_numbers_of_pixels_are_classes(read, tmp_path):
    nan = np.nan
    np.testing.assert_array_equal(
        read(np.uint8([[0, 1], [2, 255]])), [[0, 1], [2, nan]]
    )
    np.testing.assert_array_equal(read(np.array([[True, False]])), [[1, 0]])
    np.save(tmp_path / "b.npy", np.array([[True, False]]))
    found = MapRule("segment", 2).read((tmp_path / "b.npy").read_bytes())
    np.testing.assert_array_equal(found, [[1, 0]])
    # Of a palette, the indices count; of grey colours, the level.
    image = Image.fromarray(np.uint8([[2, 0]]), "P")
    image.putpalette([9, 9, 9, 8, 8, 8, 7, 7, 7])
    image.save(tmp_path / "p.png")
    rule = MapRule("segment", 3)
    found = rule.read((tmp_path / "p.png").read_bytes())
    np.testing.assert_array_equal(found, [[2, 0]])
    grey = np.repeat(np.uint8([[2, 1]])[..., None], 3, -1)
    np.testing.assert_array_equal(read(grey), [[2, 1]])
    # In 16 bits, classes above 255 and 65535 for none.
    many = MapRule("segment", 700)
    deep = read(np.uint16([[255, 699, 65535]]), many)
    np.testing.assert_array_equal(deep, [[255, 699, nan]])
    few = read(np.uint16([[255, 2]]))
    np.testing.assert_array_equal(few, [[nan, 2]])
    # A table of numbers, as of Cityscapes.
    listed = MapRule("segment", 2, classes=(-1, 1, 0))
    found = read(np.uint8([[0, 1, 2, 3, 255]]), listed)
    np.testing.assert_array_equal(found, [[nan, 1, 0, nan, nan]])
    found = listed.interpret(np.array([[-3, -1, 2]]))
    np.testing.assert_array_equal(found, [[nan, nan, 0]])


def test_numbers_of_pixels_are_depths(read, tmp_path):
    nan = np.nan
    depths = MapRule("depth")
    found = read(np.uint16([[0, 1000, 2500]]), depths)
    np.testing.assert_allclose(found, [[nan, 1, 2.5]])
    limited = MapRule("depth", depth_unit=1 / 256, max_depth=2.0)
    found = read(np.uint16([[256, 512, 513]]), limited)
    np.testing.assert_allclose(found, [[1, 2, nan]])
    metres = np.float32([[0.5, np.inf, -1, nan]])
    np.testing.assert_allclose(
        read(metres, depths, ending="tiff"), [[0.5, nan, nan, nan]]
    )
    np.save(tmp_path / "a.npy", metres[..., None])
    found = depths.read((tmp_path / "a.npy").read_bytes())
    np.testing.assert_allclose(found, [[0.5, nan, nan, nan]])
    # A picture of 32 bits whose numbers fit into 16 may be one of those.
    found = read(np.int32([[0, 65535]]), depths, ending="tiff")
    np.testing.assert_allclose(found, [[nan, 65.535]])
    halves = MapRule("depth", depth_unit=0.5)
    for numbers in (np.uint8([[1, 3]]), np.int32([[1, 70000]]), metres[:, :1]):
        ending = "png" if numbers.dtype == np.uint8 else "tiff"
        found = read(numbers, halves, ending=ending)
        np.testing.assert_allclose(found, numbers / 2)
        if numbers.dtype.kind != "f":
            with pytest.raises(ValueError, match="bits, whose unit --depth_"):
                read(numbers, depths, ending=ending)


@pytest.mark.parametrize(
    ("numbers", "mode", "fault"),
    [
        (np.uint8([[3]]), None, "the class 3, but the 3 classes"),
        (np.int32([[1, -2]]), None, "the class -2"),
        (np.uint8([[[1, 2, 3]]]), None, "has colours"),
        (np.zeros((1, 1, 4), "uint8"), "RGBA", "has colours"),
        (np.float32([[1.0]]), None, "no whole numbers"),
    ],
)
def test_other_maps_are_refused(read, numbers, mode, fault):
    ending = "png" if numbers.dtype == "uint8" else "tiff"
    with pytest.raises(ValueError, match=fault):
        read(numbers, mode=mode, ending=ending)


def test_what_is_no_map_is_refused(tmp_path):
    rule = MapRule("segment", 3)
    with pytest.raises(ValueError, match="cannot be read"):
        rule.read(b"nothing")
    np.save(tmp_path / "a.npy", np.zeros((2, 2, 3), "uint8"))
    with pytest.raises(ValueError, match="shape"):
        rule.read((tmp_path / "a.npy").read_bytes())
    # Its decoder gives other numbers than were written, and classes of none.
    image = Image.fromarray(np.uint8([[0, 1], [2, 255]]))
    image.save(tmp_path / "c.jpg", quality=100)
    with pytest.raises(ValueError, match="is a JPEG.*as PNG"):
        rule.read((tmp_path / "c.jpg").read_bytes())
    np.save(tmp_path / "b.npy", np.array([["a"]], object))
    with pytest.raises(ValueError, match="pickle"):
        rule.read((tmp_path / "b.npy").read_bytes())
