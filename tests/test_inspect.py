"""python -m keras_vit.inspect: model files and image files."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from keras_vit import (
    VisionTransformer,
    inspect,
    preprocess_input,
    save_checkpoint,
)
from keras_vit.analysis import gallery
from keras_vit.model_files import write_class_names
from keras_vit.preprocessing import imagenet_classes
from tests.tiny import noise, randomize, tiny_config
from tests.weights.cases import path_of

CHECKPOINT = str(path_of("official_token.npz"))


@pytest.fixture(scope="module")
def image_paths(tmp_path_factory):
    """Return two made image files, one of them in grey."""
    folder = tmp_path_factory.mktemp("images")
    pixels = (noise(40, 60, 3, seed=1) * 40 + 128).clip(0, 255).astype("uint8")
    paths = [str(folder / name) for name in ("colours.png", "grey.png")]
    Image.fromarray(pixels).save(paths[0])
    Image.fromarray(pixels[..., 0]).save(paths[1])
    return paths


def written(folder):
    return {path.name for path in pathlib.Path(folder).iterdir()}


def files_of(suffix, num_images):
    names = {"reading", "distances", "norms", "positions", "filters"}
    names |= {f"heads_{i + 1}" for i in range(num_images)}
    return {"report.html"} | {name + suffix for name in names}


def test_a_checkpoint_and_image_files(image_paths, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    arguments = [CHECKPOINT, *image_paths, f"--out={out}", "--format=svg"]
    assert inspect.main(arguments) == 0
    assert written(out) == files_of(".svg", 2)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "colours.png" in page and "grey.png" in page
    output = capsys.readouterr().out
    assert "Inspecting official_token.npz" in output
    for name in written(out):
        assert str(out / name) in output


def test_a_hybrid_whose_stem_is_its_root(image_paths, tmp_path):
    """R+Ti/16 is one: its filters do not read the image."""
    path = str(tmp_path / "hybrid.keras")
    config = tiny_config(
        image_size=32, patch_size=4, stem_stages=(), num_classes=5
    )
    VisionTransformer(config).save(path)
    out = tmp_path / "out"
    assert inspect.main([path, image_paths[0], f"--out={out}"]) == 0
    assert written(out) == files_of(".png", 1) - {"filters.png"}


def test_a_model_that_merges_tokens_is_shown_without(
    tmp_path, image_paths, capsys
):
    path = str(tmp_path / "merging.keras")
    config = tiny_config(merged_tokens=2, num_classes=5)
    VisionTransformer(config).save(path)
    out = tmp_path / "out"
    assert inspect.main([path, image_paths[0], f"--out={out}"]) == 0
    assert written(out) == files_of(".png", 1)
    assert "merges 2 tokens in each block" in capsys.readouterr().out


def test_flags_for_what_a_checkpoint_leaves_open(
    tmp_path, image_paths, monkeypatch
):
    subjects = []

    def note(subject, images):
        subjects.append(subject)
        return look(subject, images)

    look = gallery.look
    monkeypatch.setattr(gallery, "look", note)
    checkpoint = str(path_of("vit_keras.weights.h5"))
    flags = ["--num_heads=3", "--source_image_size=32x48", "--image_size=48"]
    arguments = [checkpoint, image_paths[0], f"--out={tmp_path / 'out'}"]
    assert inspect.main([*arguments, *flags]) == 0
    [subject] = subjects
    assert subject.model.config.num_heads == 3
    assert subject.model.config.image_size == (48, 48)


def test_every_hint_on_a_checkpoint_reaches_its_reader(
    tmp_path, image_paths, monkeypatch
):
    asked = {}

    def open_subject(source, **hints):
        asked.update(hints)
        raise ValueError("enough")

    monkeypatch.setattr(inspect, "open_subject", open_subject)
    flags = ["--architecture=vit_tiny", "--num_heads=3", "--image_size=8"]
    inspect.main(["m.npz", image_paths[0], f"--out={tmp_path}", *flags])
    assert asked.pop("source_image_size") is None
    expected = {"num_heads": 3, "image_size": (8, 8)}
    assert asked == expected | {"architecture": "vit_tiny"}


def test_hints_are_about_the_checkpoint_beside_a_keras_file(
    tmp_path, image_paths, monkeypatch, capsys
):
    path = str(tmp_path / "model.keras")
    VisionTransformer(tiny_config()).save(path)
    asked = {}

    def note(source, **hints):
        asked[source] = hints.get("num_heads")
        return open_subject(source, **hints)

    open_subject = inspect.open_subject
    monkeypatch.setattr(inspect, "open_subject", note)
    command = [path, image_paths[0], f"--out={tmp_path}", "--num_heads=3"]
    inspect.main([*command, "--compare=none.npz"])
    assert asked == {path: None, "none.npz": 3}
    capsys.readouterr()
    assert inspect.main(command) == 1
    assert "`num_heads` must be left out" in capsys.readouterr().err


def test_classes_of_imagenet_have_names(tmp_path):
    path = tmp_path / "model.keras"
    VisionTransformer(tiny_config(num_classes=1000)).save(path)
    names = inspect.open_subject(str(path)).class_names
    assert names[:2] == ["tench", "goldfish"]
    assert inspect.open_subject(CHECKPOINT).class_names is None


@pytest.mark.parametrize("number", [7, 1000])
def test_classes_that_a_checkpoint_states_have_its_names(
    tmp_path, number, monkeypatch
):
    folder = str(tmp_path / "stating")
    model = randomize(VisionTransformer(tiny_config(num_classes=number)), 0)
    save_checkpoint(model, folder, layout="huggingface")
    own = [f"part, {index}" for index in range(number)]
    write_class_names(folder, "huggingface", own)
    assert inspect.open_subject(folder).class_names == own
    if number == 7:  # Also by the name of a repository.
        monkeypatch.setattr(inspect, "locate", {"hf://me/own": folder}.get)
        monkeypatch.setattr(inspect, "open_model", lambda name: model)
        assert inspect.open_subject("hf://me/own").class_names == own
        monkeypatch.undo()
    imagenet = [name for _, name in imagenet_classes()][:number]
    write_class_names(folder, "huggingface", imagenet)
    shown = inspect.open_subject(folder).class_names
    assert shown[0] == ("tench" if number == 1000 else imagenet[0])


def test_images_are_resized_as_a_whole(image_paths):
    subject = inspect.open_subject(CHECKPOINT)
    size = subject.model.config.image_size
    with Image.open(image_paths[0]) as image:
        resized = image.resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        subject.read(image_paths[0]), preprocess_input(np.asarray(resized))
    )


def test_what_is_wrong_is_said_in_one_line(tmp_path, image_paths, capsys):
    no_image = tmp_path / "words.png"
    no_image.write_text("words")
    broken = tmp_path / "broken.keras"
    broken.write_bytes(b"no archive")
    a_file = tmp_path / "a_file"
    a_file.write_text("")
    run = tmp_path / "a run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    use = f"Type: keras-vit inspect --run_dir='{run}'"
    out = tmp_path / "out"
    for arguments, words in (
        ([CHECKPOINT, "none.png", f"--out={out}"], "no image file 'none.png'"),
        ([CHECKPOINT, str(no_image), f"--out={out}"], "Not an image"),
        (["none.npz", image_paths[0], f"--out={out}"], "none.npz"),
        ([str(broken), image_paths[0], f"--out={out}"], "broken.keras"),
        ([CHECKPOINT, image_paths[0], f"--out={a_file}"], "a_file"),
        ([CHECKPOINT, image_paths[0], "--out=gs://b/x"], "out='gs://b/x'"),
        ([str(run)], use),
        ([str(run), image_paths[0], f"--out={out}"], use),
        (
            [CHECKPOINT, image_paths[0], f"--out={out}", f"--compare={run}"],
            use,
        ),
    ):
        assert inspect.main(arguments) == 1, arguments
        captured = capsys.readouterr()
        assert captured.err.startswith("Error: "), captured.err
        assert words in captured.err
        assert captured.err.count("\n") == 1
        assert "Looking" not in captured.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([CHECKPOINT, "--out=x"], "name one IMAGE or more"),
        ([CHECKPOINT, "a.png"], "--out=DIR"),
        ([CHECKPOINT, "a.png", "--out="], "--out=DIR"),
        ([CHECKPOINT, "a.png", "--format=gif"], "invalid choice"),
        ([CHECKPOINT, "a.png", "--otu=x"], "--otu=x. Did you mean '--out'"),
        ([], "required"),
    ],
)
def test_mistyped_flags(arguments, words, capsys):
    with pytest.raises(SystemExit):
        inspect.main(arguments)
    assert words in capsys.readouterr().err


def test_ctrl_c_is_said_in_a_word(image_paths, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gallery, "look", interrupt)
    arguments = [CHECKPOINT, image_paths[0], f"--out={tmp_path / 'out'}"]
    assert inspect.main(arguments) == 130
    assert capsys.readouterr().err.endswith("stopped\n")
    assert not (tmp_path / "out").exists()
