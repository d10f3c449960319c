"""What is found in the images of a data set, and its page."""

import io
import itertools
import pathlib
import random
import re
import shutil
import types

import numpy as np
import pytest
from PIL import Image

from keras_vit.analysis.colours import CLASS_COLOURS
from tests import pictures
from tests.pictures import encode
from tests.trainers.made import waves, write_pairs, write_photos
from trainers.data import inspection as examination
from trainers.data.datasets import open_dataset
from trainers.data.inspection import (
    Examined,
    compute_look,
    count_classes,
    count_label_sets,
    examine,
    find,
    find_copies,
    find_near_copies,
    find_unread,
    inspect_images,
    judge_loose_images,
    judge_names,
    judge_splits,
    write_data_page,
)
from trainers.data.labels import LabelOptions
from trainers.inspect_data import describe_counts


def different_bits(one, other):
    return (one ^ other).bit_count()


@pytest.mark.parametrize("seed", range(2))
def test_a_look_survives_scaling_and_compression(seed):
    pixels = waves(seed)
    small = Image.fromarray(pixels).resize((90, 70))
    changed = [
        np.asarray(small),
        np.asarray(Image.open(io.BytesIO(encode(pixels, "JPEG", quality=40)))),
        np.clip(pixels * 0.8 + 20, 0, 255).astype("uint8"),
    ]
    look = compute_look(pixels)
    for other in changed:
        assert different_bits(look, compute_look(other)) <= 4
    for other in range(5):
        if other != seed:
            assert different_bits(look, compute_look(waves(other))) > 10


def test_what_is_known_of_a_photo():
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = encode(waves(0), "JPEG", exif=exif, quality=95)
    found = examine("a.jpg", "train", "cat", encoded)
    assert (found.name, found.split, found.label) == ("a.jpg", "train", "cat")
    assert (found.fault, found.size, found.kind) == ("", (160, 120), "JPEG RGB")
    assert found.is_turned
    upright = compute_look(np.rot90(waves(0), -1))
    assert different_bits(found.look, upright) <= 4
    thumbnail = Image.open(io.BytesIO(found.thumbnail))
    assert thumbnail.size == (72, 96)  # Turned as well.


@pytest.mark.parametrize(
    "pixels, kind",
    [
        (np.zeros((5, 6), "uint8"), "PNG L"),
        (np.zeros((5, 6, 4), "uint8"), "PNG RGBA"),
        (np.zeros((5, 6), "uint16"), "PNG I;16"),
    ],
)
def test_kinds_of_pixels(pixels, kind):
    found = examine("a", "test", "x", encode(pixels))
    assert (found.kind, found.fault, found.look) == (kind, "", None)


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_transparent_colours_of_a_png(mode):
    """A colour of the palette, or the key colour of the chunk tRNS."""
    photo = Image.fromarray(waves(0)).convert(mode)
    key = (1, 2, 3) if mode == "RGB" else 3
    photo.putpixel((0, 0), key)
    for options in ({}, {"transparency": key}):
        found = examine("a.png", "test", "x", encode(photo, **options))
        assert found.kind == f"PNG {mode}"
        assert found.is_transparent == bool(options)


@pytest.mark.parametrize("mode, alpha", [("RGBA", 255), ("LA", 254)])
def test_an_opaque_alpha_channel_is_no_transparency(mode, alpha):
    photo = Image.fromarray(waves(0)).convert(mode)
    pixel = photo.getpixel((4, 5))
    photo.putpixel((4, 5), (*pixel[:-1], alpha))
    found = examine("a.png", "test", "x", encode(photo))
    assert found.is_transparent == (alpha < 255)


PHOTO = encode(waves(0), "JPEG")


@pytest.mark.parametrize(
    "encoded, fault",
    [
        (b"", "the file is empty"),
        (b"hello", "not an image"),
        (PHOTO[: len(PHOTO) // 2], "the file is cut off"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image, which needs"),
        (b"II*\0 and nothing more", ""),
    ],
)
@pytest.mark.filterwarnings("ignore:.*EXIF data:UserWarning")
def test_faults_are_told_apart(encoded, fault, monkeypatch):
    monkeypatch.setattr(examination, "can_read_heif", lambda: False)
    found = examine("a.jpg", "train", "cat", encoded)
    assert found.fault.startswith(fault)
    assert found.fault
    assert found.look is None
    assert not found.thumbnail


def test_what_training_cannot_read_is_a_fault_and_nothing_else():
    for name, encoded in pictures.UNREADABLE.items():
        assert examine(name, "train", "cat", encoded).fault, name
    readable = pictures.COMMON | pictures.OTHER
    for name in ("alpha.webp", "avif.jpg", "film.webp", "damaged_exif.png"):
        found = examine(name, "train", "cat", readable[name])
        assert (found.fault, found.size) == ("", (30, 20)), name


@pytest.fixture
def photos(tmp_path):
    """Return a folder with six photos of two classes."""
    return write_photos(tmp_path / "photos", 3 * ["cat", "dog"], draw=waves)


def test_all_images_of_both_splits_are_examined(photos, capsys):
    dataset = open_dataset(f"folder:{photos}")
    (photos / "dog/3.png").unlink()
    images = inspect_images(dataset)
    assert len(images) == 6
    for image in images:
        path = pathlib.Path(image.name)
        assert image.label == path.parent.name
        assert (str(path), dataset.class_names.index(image.label)) in (
            dataset.reader.files[image.split]
        )
        assert image.fault == ("the file is empty" if path.stem == "3" else "")
    assert "6/6" in capsys.readouterr().out


def test_a_data_set_of_records(digits):
    images = inspect_images(
        open_dataset("digits", train_split="train[:9]", eval_split="test[:4]")
    )
    assert [image.split for image in images] == ["train[:9]"] * 9 + [
        "test[:4]"
    ] * 4
    labels = [int(label) for _, label in digits.examples("train[:9]")]
    assert [int(image.label) for image in images[:9]] == labels
    assert {image.kind for image in images} == {"PNG L"}


GOOD = {"look": 0, "size": (300, 200), "kind": "JPEG RGB"}


def image(name, label="cat", split="train", **facts):
    facts = {**GOOD, "look": random.Random(name).getrandbits(64), **facts}
    return Examined(name, split, label, facts.pop("digest", name), **facts)


# Looks that are far apart.
FAR = [int(f"{n:08b}" * 8, 2) for n in (0, 255, 0b00001111, 0b11110000)]
ANOTHER = int("01" * 32, 2)


def balanced():
    places = [(c, s) for c in ("cat", "dog") for s in ("train", "test")]
    found = [
        image(f"{c} {s}.jpg", c, s, look=look)
        for (c, s), look in zip(places, FAR)
    ]
    # Enough of each to measure something.
    return found + [
        image(f"{c} {s} {n}.jpg", c, s) for c, s in places for n in range(4)
    ]


def texts(images, names=("cat", "dog")):
    return [f"{f.level}: {f.text}" for f in find(images, names)]


def test_nothing_is_found_in_good_data():
    assert texts(balanced()) == []
    assert count_classes(balanced(), ["cat", "dog"]) == {
        "train": {"cat": 5, "dog": 5},
        "test": {"cat": 5, "dog": 5},
    }


def test_a_class_that_a_split_lacks_is_an_error():
    lacking = [i for i in balanced() if (i.label, i.split) != ("dog", "test")]
    [found] = texts(lacking)
    assert found.startswith("error: the split 'test' has no image of 'dog'")
    assert len(texts(balanced(), ("cat", "dog", "cow"))) == 3


@pytest.mark.parametrize("is_balanced", [False, True])
def test_great_differences_of_the_classes_are_named(is_balanced):
    many = [image(f"{i}.jpg", look=None) for i in range(100)]
    found = find(balanced() + many, ("cat", "dog"), is_balanced=is_balanced)
    [text] = [f.text for f in found if "only 10" in f.text]
    assert "'cat' has 110 images, 'dog' only 10" in text
    # No advice that is taken already.
    assert ("--class_weights=balanced" in text) != is_balanced


def test_loose_images_are_counted_and_named():
    [found] = judge_loose_images(["a.jpg"])
    assert "1 image outside the folders of the classes" in found.text
    assert "a.jpg" in found.text
    [found] = judge_loose_images(list("abcdefghijkl"))
    assert "12 images" in found.text and "i, j and 2 more;" in found.text
    assert find(balanced(), ("cat", "dog"), [found]) == [found]


def test_names_that_look_the_same_are_listed():
    names = (
        "Gr\N{LATIN SMALL LETTER O WITH DIAERESIS}n",
        "cat",
        "Gro\N{COMBINING DIAERESIS}n",
        "CAT",
        "dog",
    )
    [found] = judge_names([], names)
    assert found.level == "warning"
    assert "'cat', 'CAT'" in found.text
    assert found.text.count("'Gr") == 2
    assert not [*judge_names([], ("cat", "dog", "cats"))]


def test_all_broken_files_are_named_at_once():
    broken = [image(f"{i}.jpg", fault="the file is empty") for i in range(12)]
    [found] = find([*balanced(), *broken], ("cat", "dog"))
    assert found.level == "error"
    lines = str(found).splitlines()
    assert "12 images: unreadable, the file is empty;" in lines[0]
    assert "--max_bad_examples" in lines[0]
    assert lines[1].strip() == "0.jpg"
    assert lines[-1].strip() == "and 2 more"


@pytest.mark.parametrize(
    "changes, level, text",
    [
        ({"label": "dog"}, "warning", "but different classes"),
        ({"split": "test"}, "warning", "in several splits"),
        ({}, "note", "within a class and split"),
    ],
)
@pytest.mark.parametrize("is_exact", [True, False])
def test_copies_are_told_by_where_they_are(changes, level, text, is_exact):
    first = balanced()[0]
    digest = first.digest if is_exact else "other"
    copy = image("new.jpg", look=first.look, digest=digest, **changes)
    [found] = find([*balanced(), copy], ("cat", "dog"))
    level = "warning" if is_exact else level
    how = "the same content" if is_exact else "the same look"
    assert (found.level, how in found.text) == (level, True)
    assert text in found.text
    assert [i.name for i in found.groups[0]] == [first.name, "new.jpg"]


@pytest.mark.parametrize(
    "name, facts, text",
    [
        ("x.jpg", {"is_turned": True}, "Exif"),
        ("x.jpg", {"size": (31, 400)}, "less than 32"),
        ("x.png", {}, "ending"),
        ("x.jpg", {"kind": "JPEG CMYK"}, "CMYK"),
        (
            "x.png",
            {"kind": "PNG I;16", "levels": (0.0, 65535.0)},
            "more than 8 bits",
        ),
        ("x.png", {"kind": "PNG P", "is_transparent": True}, "transparent"),
        ("x.gif", {"kind": "GIF P", "num_frames": 3}, "frames"),
        ("x.jpg", {"look": None}, "no contrast"),
    ],
)
def test_what_is_worth_knowing_is_noted(name, facts, text):
    facts = {"look": ANOTHER, **facts}
    [found] = texts([*balanced(), image(name, **facts)])
    assert found.startswith("note: 1 image: ")
    assert text in found


@pytest.mark.parametrize(
    "name, kind",
    [
        ("a.JPG", "JPEG RGB"),
        ("a.jpeg", "MPO RGB"),
        ("digits-train.tfrecord-00000-of-00001__0", "PNG L"),
        ("a.heic", "HEIF RGB"),
    ],
)
def test_usual_files_are_not_noted(name, kind):
    facts = {"kind": kind, "num_frames": 2 if "MPO" in kind else 1}
    rows = [*balanced(), image(name, look=ANOTHER, **facts)]
    assert texts(rows) == []


def looking(name, look=None, digest=None):
    return Examined(name, "train", "cat", digest or name, look=look)


def names(groups):
    return sorted(sorted(image.name for image in group) for group in groups)


def test_looks_of_few_different_bits_are_near_copies():
    rows = [
        looking("a", 0),
        looking("b", 0b1111),
        looking("c", 0b1111 << 60),
        looking("far", 0b11111 << 30),
        looking("flat"),
        looking("flat too"),
        # Copies are no near copies.
        looking("one", ANOTHER, "1"),
        looking("other", ANOTHER, "1"),
    ]
    assert names(find_near_copies(rows)) == [["a", "b", "c"]]
    assert names(find_copies(rows)) == [["one", "other"]]


def test_no_pair_is_missed():
    """As by comparing each with each other."""
    draws = random.Random(0)
    looks = [draws.getrandbits(64) for _ in range(150)]
    for look in looks[:100]:
        for bit in draws.sample(range(64), draws.randrange(7)):
            look ^= 1 << bit
        looks.append(look)
    rows = [looking(str(index), look) for index, look in enumerate(looks)]
    together = {
        name: group for group in names(find_near_copies(rows)) for name in group
    }
    pairs = 0
    for one, other in itertools.combinations(rows, 2):
        if (one.look ^ other.look).bit_count() <= 4:
            pairs += 1
            assert other.name in together[one.name]
    assert pairs > 50
    # No chain of pairs joins different originals: random bits are far apart.
    assert max(map(len, together.values())) <= 2


def test_near_copies_are_found_among_many_that_share_most_bits():
    """Each number but 0 has a smaller one that differs in one bit."""
    rows = [looking(str(number), number << 52) for number in range(600)]
    [group] = find_near_copies(rows)
    assert len(group) == 600


@pytest.fixture
def in_splits(tmp_path):
    """Return a folder with a photo of each class in three splits."""
    splits = ("train", "test", "val")
    places = [f"{split}/{name}" for split in splits for name in ("cat", "dog")]
    return write_photos(tmp_path, places, draw=waves)


def test_a_split_that_nobody_reads_is_named_with_its_use(in_splits):
    [found] = find_unread(open_dataset(f"folder:{in_splits}"))
    assert str(found).startswith("Warning: the split 'val', 2 images, is not")
    assert "with --eval_split=val" in found.text
    assert "evaluate --eval_split=test" in found.text
    dataset = open_dataset(
        f"folder:{in_splits}", train_split="train+val", eval_split="test[:1]"
    )
    assert find_unread(dataset) == []
    assert find_unread(open_dataset("digits")) == []


def test_a_split_is_not_read_because_another_has_its_name_within(in_splits):
    table = in_splits / "table.csv"
    names = {"train": "train", "val": "train_small", "test": "test"}
    rows = [
        f"{split}/{path.parent.name}/{path.name},{path.parent.name},{name}"
        for split, name in names.items()
        for path in (in_splits / split).glob("*/*")
    ]
    table.write_text("\n".join(["path,label,split", *rows]))
    dataset = open_dataset(f"csv:{table}", train_split="train_small")
    [found] = judge_splits(dataset)
    assert "the split 'train', 2 images, is not read" in found.text


def test_files_of_no_image_are_counted_by_their_endings(in_splits):
    shutil.rmtree(in_splits / "val")
    for name in ("a.TXT", "b.txt", "c.psd", "d", ".hidden", "Thumbs.db"):
        (in_splits / "train/cat" / name).write_bytes(b"")
    (in_splits / "test/dog/lost.jpg").symlink_to(in_splits / "nowhere.jpg")
    with pytest.warns(UserWarning, match="1 broken link is left out.*lost.jpg"):
        dataset = open_dataset(f"folder:{in_splits}")
    [found] = find_unread(dataset)
    assert "not read: 2 of .txt, 1 of " in found.text
    for part in ("1 of .psd", "1 of no ending", "1 of links that lead nowhere"):
        assert part in found.text
    assert "hidden" not in found.text and ".db" not in found.text


def test_labels_are_counted_each_and_together():
    """Images of two labels, of one and of none."""
    sets = [("cat", "dog"), ("cat", "dog"), ("dog", "ant"), ("cat",), ()]
    images = [
        image(str(n), ", ".join(labels), labels=labels)
        for n, labels in enumerate(sets)
    ]
    names = ["ant", "cat", "dog", "emu"]
    counts = {"train": {"ant": 1, "cat": 3, "dog": 3, "emu": 0}}
    assert count_classes(images, names) == counts
    assert count_label_sets(images) == {
        "Labels an image": {"0": 1, "1": 1, "2": 3},
        "Labels that occur together": {"cat + dog": 2, "ant + dog": 1},
    }
    findings = find(images, names)
    assert {finding.level for finding in findings} == {"warning"}
    assert "no image of 'emu'" in str(findings[0])
    assert not count_label_sets([image("a")])


def test_an_image_that_pillow_cannot_read_is_no_fault():
    assert find([image("a.jpg", kind="")], ["cat"])


def test_a_photo_in_two_classes_may_have_both():
    images = [image(str(n), x, digest="same") for n, x in enumerate("ab")]
    assert "--labels=several" in str(find(images, ["a", "b"]))
    sets = [one._replace(labels=(one.label,)) for one in images]
    text = " ".join(map(str, find(sets, ["a", "b"])))
    assert "different classes" in text and "--labels" not in text


def make_page(path, images, names):
    write_data_page(path, "folder:<photos>", images, names, find(images, names))
    return path.read_text(encoding="utf-8")


def test_counts_findings_and_pictures_are_on_one_page(tmp_path):
    names = ["<b>cat</b>", "dog 犬"]
    images = [
        examine(f"{split}/{index}.png", split, name, encode(waves(seed)))
        for seed, (split, name, index) in enumerate(
            (split, name, index)
            for split in ("train", "test")
            for name in names
            for index in range(2)
        )
    ]
    images.append(examine("a.jpg", "train", names[1], b""))
    page = make_page(tmp_path / "index.html", images, names)
    assert "<b>" not in page
    assert "&lt;b&gt;cat&lt;/b&gt;" in page
    assert "dog 犬</th><td>3</td><td>2</td>" in page
    assert page.count("<img ") == 8  # Each once: no finding is about them.
    assert 'title="a.jpg"><div class="none">' in page
    assert "unreadable, the file is empty" in page
    # It needs no network and runs no scripts.
    assert not re.search(r"<script|https?:|<link", page)
    assert "default-src 'none'" in page


def inspect_pairs(folder, kind):
    dataset = open_dataset(f"pairs:{folder}", labels=LabelOptions(kind))
    return inspect_images(dataset), dataset.class_names


def test_the_same_fault_of_many_maps_is_one_finding(tmp_path):
    folder = write_pairs(tmp_path)
    for n in range(3):
        (folder / f"masks/{n}.png").unlink()
    images, names = inspect_pairs(folder, "segment")
    [fault] = [x for x in find(images, names) if x.level == "error"]
    assert str(fault).startswith("Error: 3 images: unreadable, the map is not")


def test_images_are_shown_with_their_maps(tmp_path):
    folder = tmp_path / "segment"
    image = np.zeros((200, 400, 3), "uint8")
    numbers = np.zeros((200, 400), "uint8")
    numbers[:, 200:] = 1
    for name, content in (("images", image), ("masks", numbers)):
        (folder / name).mkdir(parents=True)
        for n in range(2):
            content[0, 0] = n
            Image.fromarray(content).save(folder / name / f"{n}.png")
    images, names = inspect_pairs(folder, "segment")
    page = make_page(tmp_path / "index.html", images, names)
    assert page.count('alt="with its map"') >= 2
    for name, colour in zip(names, CLASS_COLOURS):
        assert f'<i style="background:{colour}"></i>{name}</span>' in page
    painted = Image.open(io.BytesIO(images[0].map_thumbnail))
    assert painted.size == (80, 40)
    for x, colour in ((20, CLASS_COLOURS[0]), (60, CLASS_COLOURS[1])):
        expected = 0.55 * np.array([*bytes.fromhex(colour[1:])])
        np.testing.assert_allclose(painted.getpixel((x, 20)), expected, atol=4)


def test_a_page_of_depths_has_no_classes(tmp_path):
    for name in ("images", "depths"):
        (tmp_path / name).mkdir()
    for n in range(3):
        Image.fromarray(waves(n)).save(tmp_path / f"images/{n}.png")
        depths = np.full(waves(n).shape[:2], 1500, "uint16")
        depths[0] = 2500
        depths[1] = 0  # Unknown.
        Image.fromarray(depths).save(tmp_path / f"depths/{n}.png")
    images, names = inspect_pairs(tmp_path, "depth")
    page = make_page(tmp_path / "index.html", images, names)
    assert page.count("1.5 to 2.5 m") == page.count('alt="with its map"') == 3
    assert "classes" not in page and "Labels" not in page
    assert 'class="class"' not in page
    counts = describe_counts(images, names)
    assert counts.startswith("| split | images |")


def test_weights_of_classes_are_not_advised_for_maps():
    names = ["road", "sign"]
    images = [image(str(n), "road") for n in range(30)] + [image("x", "sign")]
    assert "--class_weights" in " ".join(map(str, find(images, names)))
    images = [one._replace(map_thumbnail=b"JPEG") for one in images]
    assert "--class_weights" not in " ".join(map(str, find(images, names)))


def test_what_pillow_cannot_read_has_no_other_ending():
    for kind, is_other in (("", False), ("PNG RGB", False), ("BMP RGB", True)):
        image = types.SimpleNamespace(name="large.png", kind=kind)
        assert examination._has_other_ending(image) == is_other
