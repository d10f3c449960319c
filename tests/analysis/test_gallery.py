"""The folder of pictures: which files, of which models, with which words."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.analysis import gallery, plots, representation_similarity
from keras_vit.analysis.gallery import NamedImages, Subject, write_gallery
from tests.tiny import noise, randomize, tiny_config

NAMES = [f"class {i}" for i in range(7)]


def make_subject(name="first", seed=0, **changes):
    config = tiny_config(
        image_size=16, patch_size=8, depth=2, channels=1, num_classes=7
    )
    model = randomize(VisionTransformer(config), seed)
    return Subject(name, model, read=np.load, class_names=NAMES, **changes)


def make_images(count=2, seed=1):
    return NamedImages(
        noise(count, 16, 16, 1, seed=seed), [f"{i}.png" for i in range(count)]
    )


def written(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)) for path in paths}


def pictures(num_images, folder=""):
    names = {"reading", "distances", "norms", "positions", "filters"}
    names |= {f"heads_{i + 1}" for i in range(num_images)}
    return {f"{folder}{name}.png" for name in names}


def test_all_pictures_of_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    home = f"~/{tmp_path.name}"
    paths = write_gallery([make_subject()], [make_images()], home)
    assert written(tmp_path) == {"report.html", *pictures(2)}
    found = {str(path.relative_to(tmp_path)) for path in paths}
    assert found == written(tmp_path)
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 100
            assert len(image.convert("L").getcolors(256)) > 2
    assert "Inspecting first" in capsys.readouterr().out


def test_what_is_known_of_a_model_is_told():
    subject = make_subject(activation="sigmoid", normalization="zero_one")
    seen = gallery.look(subject, make_images(1))
    assert (seen.model_name, seen.image_names) == ("first", ("0.png",))
    assert seen.class_names == tuple(NAMES)
    assert seen.probabilities.sum() != pytest.approx(1)  # Of a sigmoid.
    want = np.clip(np.round(255 * make_images(1).pixels), 0, 255)
    np.testing.assert_allclose(seen.pixels, want, atol=1)


def test_two_models_are_compared_on_images_that_both_read(
    tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(
        plots,
        "plot_representation_similarity",
        lambda *what: drawn.append(what) or Figure(),
    )
    monkeypatch.setattr(gallery, "FEWEST_FOR_SIMILARITY", 4)

    def touch(figure, path):  # To write a picture takes most of the time.
        path.parent.mkdir(exist_ok=True)
        path.touch()

    monkeypatch.setattr(plots, "save_figure", touch)
    subjects = [make_subject(), make_subject("second", seed=7)]
    images = make_images(4)
    write_gallery(subjects, [images, images], tmp_path)
    assert written(tmp_path) == {
        "report.html",
        "similarity.png",
        *pictures(4),
        *pictures(4, "compared/"),
    }
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "first" in page and "second" in page
    [(similarity, names)] = drawn
    expected = representation_similarity(
        *(subject.model for subject in subjects), images.pixels
    )
    np.testing.assert_allclose(similarity, expected, atol=1e-5)
    assert names == ("first", "second")


@pytest.mark.parametrize("count, same", [(3, True), (4, False)])
def test_blocks_of_few_or_of_other_images_are_not_compared(
    tmp_path, monkeypatch, count, same
):
    monkeypatch.setattr(gallery, "FEWEST_FOR_SIMILARITY", 4)
    monkeypatch.setattr(gallery, "pictures_of", lambda *_: [])
    images = [make_images(count), make_images(count, seed=1 if same else 2)]
    subject = make_subject()
    write_gallery([subject, subject], images, tmp_path)
    assert written(tmp_path) == {"report.html"}


def test_files_and_models_of_one_name_are_told_apart(tmp_path):
    for name in ("a/x.npy", "b/x.npy", "b/y.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.zeros((16, 16, 1)))
    subject = make_subject()
    twins = [str(tmp_path / name) for name in ("a/x.npy", "b/x.npy")]
    assert gallery.load_images(subject, twins).names == twins
    others = [twins[0], str(tmp_path / "b/y.npy")]
    assert gallery.load_images(subject, others).names == ["x.npy", "y.npy"]
    apart = gallery.name_apart([subject, subject], ["a/x", "b/x"])
    assert [subject.name for subject in apart] == ["a/x", "b/x"]
    apart = gallery.name_apart([subject, make_subject("other")], ["a", "b"])
    assert [subject.name for subject in apart] == ["first", "other"]
