"""Several labels an image: tables, folders, records, TFDS and the split."""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tests.trainers.made import write_records
from tests.trainers.mocked import write_metadata
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import open_dataset
from trainers.data.labels import LabelOptions, LabelSet
from trainers.data.readers.image_paths import split_by_content

NAN = float("nan")
# Of the images 0 to 3; the last one has none.
WANT = [[1, 1], [0, 1], [1, 0], [0, 0]]


@pytest.fixture
def folder(tmp_path):
    """Return a folder of four images of a grey level each: 0, 10, 20, 30."""
    for index in range(4):
        pixels = np.full((4, 6, 3), 10 * index, "uint8")
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    return tmp_path


def read(folder, text, **options):
    """Return the classes of a table, and the labels of images 0 to 3."""
    path = folder / "labels.csv"
    path.write_bytes(text.encode("utf-8-sig"))
    dataset = open_dataset(f"csv:{path}", labels=LabelOptions(**options))
    assert dataset.has_several_labels
    found = {
        int(pathlib.Path(path).stem): label
        for split in ("train", "test")
        for (path, _), label in zip(
            dataset.reader.files[split], dataset.labels(split), strict=True
        )
    }
    return dataset.class_names, np.array([found[i] for i in range(4)])


CELLS = "0.png{0}{1}\r\n1.png{0}dog\r\n2.png{0}cat\r\n3.png{0}\r\n"
LISTS = """0.png,"['cat' 'dog']"\n1.png,"[""dog""]"\n2.png,[cat]\n3.png,[]\n"""
MIXED = """0.png,"{cat,dog}"\n1.png,dog\n2.png,"('cat',)"\n3.png,\n"""


@pytest.mark.parametrize(
    "text, options",
    [
        ("path,labels\r\n" + CELLS.format(",", '"cat, dog"'), {}),
        ("path; Tags\r\n" + CELLS.format(";", "cat|dog"), {}),
        ("path,class names\r\n" + CELLS.format(",", "dog;cat"), {}),
        ("path\tlabels\r\n" + CELLS.format("\t", "cat,dog,cat"), {}),
        ("path,labels\n" + LISTS, {}),
        ("path,labels\n" + MIXED, {}),
        # In a column of one class, if the user says so.
        (
            "path,label\n" + CELLS.format(",", "cat/dog"),
            {"separator": "/"},
        ),
        ("path,label\n" + CELLS.format(",", "cat;dog"), {"kind": "several"}),
    ],
)
def test_several_labels_in_a_cell(folder, text, options):
    names, labels = read(folder, text, **options)
    assert names == ["cat", "dog"]
    np.testing.assert_array_equal(labels, WANT)


def test_what_separates_labels_is_found_or_given(folder):
    text = "path,labels\n0.png,cat|big; old\n1.png,cat\n2.png,big; old\n3.png,"
    with pytest.raises(ValueError, match=r"`label_separator`.*cat\|big; old"):
        read(folder, text)
    names, labels = read(folder, text, separator="|")
    assert names == ["big; old", "cat"]
    np.testing.assert_array_equal(labels, [[1, 1], [0, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize("kind", ["auto", "several"])
def test_lines_of_one_image_are_its_labels(folder, kind):
    """A line without a label is an image that has none."""
    text = "path;label\n0.png;dog\n1.png;dog\n./0.png;cat\n2.png;cat\n3.png;\n"
    names, labels = read(folder, text, kind=kind)
    assert names == ["cat", "dog"]
    np.testing.assert_array_equal(labels, WANT)


@pytest.mark.parametrize(
    "text",
    [
        "path,labels\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,dog\n",
        "path,cat,dog\n0.png,1,0\n1.png,0,1\n2.png,1,0\n3.png,0,1\n",
    ],
)
def test_one_label_an_image_may_be_said_to_be_a_class(folder, text):
    read(folder, text)
    one = open_dataset(f"csv:{folder}/labels.csv", labels=LabelOptions("one"))
    assert not one.has_several_labels and one.class_names == ["cat", "dog"]
    found = {
        int(image[0, 0, 0]) // 10: int(label)
        for image, label in one.examples("train+test")
    }
    assert found == {0: 0, 1: 1, 2: 0, 3: 1}


def test_few_images_of_several_lines_may_be_mistakes(folder):
    """One image in 24 has two: the user says what it is."""
    names = [f"{i}.png" for i in range(24)]
    for name in names[4:]:
        pixels = np.full((4, 6, 3), 10 * int(name[:-4]), "uint8")
        Image.fromarray(pixels).save(folder / name)
    lines = [f"{name},{'ab'[i % 2]}" for i, name in enumerate(names)]
    text = "\n".join(["path,label", *lines, "0.png,b"])
    with pytest.raises(ValueError, match="`labels` must be.*1 of 24.*0.png"):
        read(folder, text)
    _, labels = read(folder, text, kind="several")
    np.testing.assert_array_equal(labels, [[1, 1], [0, 1], [1, 0], [0, 1]])
    one = open_dataset(f"csv:{folder}/labels.csv", labels=LabelOptions("one"))
    assert not one.has_several_labels


@pytest.mark.parametrize("one, zero", [("1", "0"), ("TRUE", "False")])
def test_a_column_for_each_class(folder, one, zero):
    """Also for one that no image has; the first column is that of pandas."""
    text = "\r\n".join(
        [
            ";path;cat; dog ;ant;note;later",
            f"0;0.png;{one};{one};{zero};x;",
            f"1;1.png;{zero};{one};;;",
            f"2;2.png;{one};;{zero};;",
            f"3;3.png;{zero};{zero};{zero};;",
        ]
    )
    with pytest.warns(UserWarning, match=r"later \(empty\), note \('x'\)"):
        names, labels = read(folder, text)
    assert names == ["ant", "cat", "dog"]
    want = [[0, 1, 1], [NAN, 0, 1], [0, 1, NAN], [0, 0, 0]]
    np.testing.assert_array_equal(labels, want)


def test_classes_of_the_model_that_data_do_not_name(folder):
    """They are absent from lists of labels, and unknown to other columns."""
    names = ["dog", "ant", "cat"]
    read(folder, "path,labels\n" + CELLS.format(",", "cat|dog"))
    dataset = open_dataset(f"csv:{folder}/labels.csv").with_forms_of(names)
    assert dataset.class_names == names
    assert sorted(map(tuple, dataset.labels("train+test"))) == sorted(
        (dog, 0, cat) for cat, dog in WANT
    )
    read(folder, "path,cat,dog\n0.png,1,0\n1.png,0,1\n2.png,1,\n3.png,0,0")
    dataset = open_dataset(f"csv:{folder}/labels.csv").with_forms_of(names)
    labels = dataset.labels("train+test")
    assert np.isnan(labels[:, 1]).all() and np.nansum(labels) == 3
    # A class that the model has not is never left out.
    other = dataset.with_forms_of(["ant", "dog"])
    assert other.class_names == ["ant", "cat", "dog"]


@pytest.mark.parametrize(
    "text, kind, fault",
    [
        ("path,labels\n0.png,a|b\n./0.png,a\n", "auto", "one line an image"),
        (
            "path,labels\n0.png,a|b\n1.png,a\n",
            "one",
            "`labels` must be several.*0.png: a, b",
        ),
        ("path,note\n0.png,x\n", "auto", "label or class"),
        ("path,labels\n4.png,a|b\n", "auto", "no file"),
        ("path,label,labels\n0.png,a,a|b\n", "auto", "'label' and 'labels'"),
        ("path,labels,Labels\n0.png,a,a|b\n", "auto", "'labels' and 'Labels'"),
        ("path,a,b,a\n0.png,1,0,0\n", "auto", "'a' twice"),
        (
            "path,a,b\n0.png,1,0\n1.png,0,1\n2.png,1,?\n",
            "auto",
            r"'\?' in line 4 of the column 'b'",
        ),
        (
            "path,a,b\n0.png,1,0\n1.png,,1\n2.png,1,0\n",
            "auto",
            "must have a 0 .* column 'a'",
        ),
        (
            "path,a,b\n0.png,1,0\n1.png,0\n2.png,1,1\n",
            "auto",
            "fewer in line 3",
        ),
        (
            "path,a,b\n0.png,Y,N\n1.png,N,Y\n",
            "auto",
            "one for each class.*a .'y'.",
        ),
        (
            "path,label,sure\n0.png,a,1\n0.png,b,0\n1.png,b,1\n",
            "auto",
            "0 in the column 'sure'",
        ),
        (
            "path,labels\n0.png,a b\n1.png,a\n2.png,b c\n3.png,c a\n",
            "auto",
            "`label_separator` must be given: .* ' '",
        ),
        (
            "path,label\n0.png,a\n1.png,b\n2.png,a;b\n",
            "auto",
            "`label_separator` must be given, such as ';'.*'a;b'",
        ),
    ],
)
def test_faults_of_tables_are_named(folder, text, kind, fault):
    with pytest.raises(ValueError, match=fault):
        read(folder, text, kind=kind)


def test_a_separator_for_a_column_a_class_is_refused(folder):
    with pytest.raises(ValueError, match="`label_separator`"):
        read(folder, "path,a,b\n0.png,1,0\n1.png,0,1", separator=";")


def test_other_labels_in_another_split_are_no_further_ones(folder):
    lines = [f"{i}.png,{x},{s}" for i in (0, 1) for x, s in ("ax", "by")]
    (folder / "t.csv").write_text("\n".join(["path,label,split", *lines]))
    dataset = open_dataset(f"csv:{folder}/t.csv", None, "x", "y")
    assert not dataset.has_several_labels
    assert dataset.labels("x").tolist() == [0, 0]
    assert dataset.labels("y").tolist() == [1, 1]


def test_words_for_no_label_are_classes_with_a_warning(folder):
    text = "path,labels\n0.png,a|b\n1.png,N/A\n2.png,a\n3.png,"
    with pytest.warns(UserWarning, match="1 label .*: N/A"):
        names, _ = read(folder, text)
    assert names == ["N/A", "a", "b"]


def test_a_photo_in_two_folders_has_both_labels(tmp_path):
    random = np.random.default_rng(0)
    for index in range(8):
        place = tmp_path / ("cat" if index % 2 else "dog")
        place.mkdir(exist_ok=True)
        pixels = random.integers(0, 255, (4, 4, 3), "uint8")
        Image.fromarray(pixels).save(place / f"{index}.png")
    shutil.copy(tmp_path / "cat" / "1.png", tmp_path / "dog" / "copy.png")
    name = f"folder:{tmp_path}"
    dataset = open_dataset(name, labels=LabelOptions("several"))
    rows = [row for rows in dataset.reader.files.values() for row in rows]
    sets = {path.rpartition("/")[2]: label for path, label in rows}
    assert len(rows) == 8
    assert sorted(sets["1.png"].present) == [0, 1]
    assert sets["2.png"] == LabelSet((1,))
    assert not open_dataset(name).has_several_labels


def test_an_unknown_label_stays_unknown_when_images_are_mixed(folder):
    text = "path,cat,dog,split\n" + "\n".join(
        f"{i}.png,1,{'' if i % 2 else 0},train\n{i}.png,,,test\n{i}.png,0,1,no"
        for i in range(4)
    )
    (folder / "labels.csv").write_text(text)
    dataset = open_dataset(f"csv:{folder}/labels.csv")
    batches = train_batches(
        dataset, image_size=(4, 6), batch_size=4, augment="mixup(1.0)"
    )
    _, labels, weights = next(iter(batches))
    assert (labels[:, 0].numpy() == 1).all() and (weights.numpy() == 1).all()
    is_unknown = np.isnan(labels[:, 1])
    assert is_unknown.any() and (labels[:, 1][~is_unknown].numpy() == 0).all()
    # Images of which nothing is known do not count.
    batches = eval_batches(dataset, image_size=(4, 6), batch_size=8)
    assert [weights.numpy().sum() for *_, weights in batches] == [0]


def test_records_with_lists_of_classes(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    image = tf.io.encode_png(tf.zeros((2, 2, 3), tf.uint8)).numpy()
    labels = [[0, 1], [1], [0], []]
    write_records(tmp_path / "train-0", [image] * 4, labels)
    write_records(tmp_path / "test-0", [image] * 3, labels[1:])
    dataset = open_dataset(f"tfrecord:{tmp_path}")
    np.testing.assert_array_equal(dataset.labels("train"), WANT)
    np.testing.assert_array_equal(dataset.labels("test"), WANT[1:])
    with pytest.raises(ValueError, match="train-0:0 has no single image/class"):
        open_dataset(f"tfrecord:{tmp_path}", labels=LabelOptions("one"))


@pytest.mark.parametrize("name", ["voc/2007", "celeb_a"])
def test_lists_and_truth_values_of_tfds(name, tmp_path):
    write_metadata(name, ["train", "test"], tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        dataset = open_dataset(name)
        labels = dataset.labels("train")
        builder = tfds.builder(name, data_dir=tmp_path)
        key = "labels" if name != "celeb_a" else "attributes"
        feature = builder.info.features[key]
        # What is made up depends on the features that are read.
        decoders = tfds.decode.PartialDecoding(
            {"image": True, key: True},
            {"image": tfds.decode.SkipDecoding()},
        )
        rows = builder.as_dataset(split="train", decoders=decoders)
        rows = [row[key] for row in tfds.as_numpy(rows)]
    assert dataset.has_several_labels
    if name == "celeb_a":
        assert dataset.class_names == list(feature)
        want = [[row[n] for n in feature] for row in rows]
    else:
        assert dataset.class_names == feature.feature.names
        want = [np.isin(range(20), row) for row in rows]
    assert labels.shape == (8, len(dataset.class_names))
    assert 0 < labels.sum() < labels.size
    np.testing.assert_array_equal(labels, np.array(want, "float32"))


@pytest.mark.parametrize("seed", range(5))
def test_rare_labels_are_on_both_sides_where_it_can_be(tmp_path, seed):
    """Labels of 1 to 8 images of 60, in any combination."""
    random = np.random.default_rng(seed)
    files, has = [], random.random((60, 12)) < np.arange(12) / 100
    has[:, 0] = True
    for index, row in enumerate(has):
        path = tmp_path / f"{index}.jpg"
        path.write_bytes(b"photo %d %d" % (seed, index))
        label = LabelSet(tuple(f"{n:02}" for n in np.flatnonzero(row)))
        files.append((str(path), label))
    sides = split_by_content(files, "csv:labels.csv")
    assert sorted(sides["train"] + sides["test"]) == sorted(files)
    assert 4 <= len(sides["test"]) <= 24
    for n, count in enumerate(has.sum(0)):
        name = f"{n:02}"
        found = {
            side: sum(name in label.present for _, label in rows)
            for side, rows in sides.items()
        }
        assert found["train"] or not count
        if count > 2:
            assert found["test"], (name, count)
