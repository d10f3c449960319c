"""python -m keras_vit.convert and python -m keras_vit.inspect_checkpoint."""

import pathlib
import re
import shutil

import keras
import numpy as np
import pytest

from keras_vit import (
    VARIANTS,
    VisionTransformer,
    convert,
    from_checkpoint,
    inspect_checkpoint,
    save_checkpoint,
)
from keras_vit.model_files import stated_class_names, write_class_names
from tests.tiny import make, randomize, tiny_config
from tests.weights.cases import TIMM, TOKEN, assert_answers, path_of, stored_in


def test_inspecting_a_file(capsys):
    path = str(path_of("big_vision_gap_scan.npz"))
    assert inspect_checkpoint.main([path]) == 0
    output = capsys.readouterr().out
    for words in (
        "big_vision: google-research/big_vision, scan names",
        "parameters     14,983",
        "depth                    2",
        "activation               tanh",
        "block_01/attention/qkv/kernel  params/Transformer/encoderblock/"
        "MultiHeadDotProductAttention_0/key/kernel[1]",
        "(2, 24, 3, 8)",
    ):
        assert words in output
    assert inspect_checkpoint.main([path, "--brief"]) == 0
    assert "encoderblock" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [inspect_checkpoint, convert])
@pytest.mark.parametrize(
    ("source", "words"),
    [("none.npz", "There is no file"), ("B/16-sam", ".* could not be fetched")],
)
def test_what_is_wrong_is_said_in_one_line(
    command, source, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_MIRROR", "http://127.0.0.1:9")
    arguments = [source]
    if command is convert:
        arguments += [str(tmp_path / "out.npz"), "--layout=official"]
    assert command.main(arguments) == 1
    error = capsys.readouterr().err
    assert re.match(f"Error: {words}", error) and error.count("\n") == 1


def test_an_error_of_the_system_is_its_path_and_reason(
    capsys, tmp_path, monkeypatch
):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(inspect_checkpoint, "locate", refuse)
    assert inspect_checkpoint.main(["a.npz"]) == 1
    assert capsys.readouterr().err == "Error: a.npz: Permission denied\n"


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    from_checkpoint(path_of(TOKEN)).save(path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"no archive",
        lambda data: data[:-100],
        lambda data: data.replace(b"VisionTransformer", b"VisionTransformed"),
        None,  # It is not there.
    ],
)
def test_a_damaged_keras_file_is_an_error_of_one_line(
    change, keras_file, tmp_path, capsys
):
    source = tmp_path / "model.keras"
    if change:
        source.write_bytes(change(keras_file.read_bytes()))
    arguments = [str(source), str(tmp_path / "out.npz"), "--layout=official"]
    assert convert.main(arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: ") and str(source) in error
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("layout, name", [("official", "w.npz"), ("timm", "w")])
def test_nothing_is_overwritten_unless_it_is_asked_for(
    layout, name, tmp_path, capsys
):
    target = tmp_path / name
    mine = target if "." in name else target / "config.json"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("important")
    words = [str(path_of("official_token.npz")), str(target)]
    words += [f"--layout={layout}"]
    assert convert.main(words) == 1
    error = capsys.readouterr().err
    assert f"(--overwrite). Received: target={str(target)!r}" in error
    assert mine.read_text() == "important"
    assert convert.main([*words, "--overwrite"]) == 0
    assert b"important" not in mine.read_bytes()


def test_a_target_that_cannot_be_written(tmp_path, capsys):
    source = str(path_of("official_token.npz"))
    (tmp_path / "file").touch()
    target = str(tmp_path / "file" / "out.npz")
    assert convert.main([source, target, "--layout=official"]) == 1
    error = capsys.readouterr().err
    assert target in error and f"{tmp_path / 'file'} is a file" in error


@pytest.mark.parametrize("flag", ["--num_heads=3", "--source_image_size=32"])
def test_a_keras_file_states_its_properties_itself(
    flag, keras_file, tmp_path, capsys
):
    target = tmp_path / "out.npz"
    command = [str(keras_file), str(target), "--layout=official", flag]
    assert convert.main(command) == 1
    name = flag[2:].partition("=")[0]
    error = capsys.readouterr().err
    assert error.startswith(f"Error: `{name}` must be left out")
    assert not target.exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.36 TiB for an array"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."),
        ZeroDivisionError(),
    ],
)
def test_images_too_large_for_the_memory(
    error, keras_file, tmp_path, monkeypatch, capsys
):
    """Another error is not taken for full memory."""

    def fail(*_):
        raise error

    monkeypatch.setattr(VisionTransformer, "with_image_size", fail)
    command = [str(keras_file), str(tmp_path / "out.npz"), "--layout=official"]
    command.append("--image_size=20000")
    if isinstance(error, ZeroDivisionError):
        with pytest.raises(ZeroDivisionError):
            convert.main(command)
        return
    assert convert.main(command) == 1
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert output.startswith("Error: The memory is not enough")
    assert "image_size=(20000, 20000)" in output


def test_converting_round_the_families(tmp_path, capsys):
    """Official, Hugging Face, Keras, timm: each from the one before."""
    path = str(path_of(TOKEN))
    for target, layout in (
        ("hf", "huggingface"),
        ("model.keras", "keras"),
        ("timm", "timm"),
        ("big_vision.npz", "big_vision"),
        ("official.npz", "official"),
    ):
        target = str(tmp_path / target)
        assert convert.main([path, target, f"--layout={layout}"]) == 0
        assert f"{target}: written, {layout}" in capsys.readouterr().out
        path = target
    model = from_checkpoint(path)
    assert_answers(model, TOKEN)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_the_classes_that_a_folder_names(layout, file, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    model = make(num_classes=3, activation="exact")
    save_checkpoint(model, source, layout=layout)
    names = ["cat", "dog", "bird"]
    write_class_names(source, layout, names)
    other = {"huggingface": "timm", "timm": "huggingface"}[layout]
    for kind in (layout, other):
        convert.convert(str(source / file), str(target), kind, overwrite=True)
        assert stated_class_names(target, 3) == names
        shutil.rmtree(target)
    kept = tmp_path / "model.keras"
    convert.convert(str(source / file), str(kept), "keras")
    model = keras.saving.load_model(kept)
    assert model.config.class_names == tuple(names)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_the_classes_that_a_model_knows(layout, tmp_path, monkeypatch):
    names = ("cat", "dog", "bird")
    model = make(num_classes=3, activation="exact", class_names=names)
    model.save(tmp_path / "model.keras")
    # There is nothing else to look for, such as in a bucket.
    monkeypatch.setattr(convert, "locate", None)
    for file in ("model", "plain"):
        source, target = str(tmp_path / f"{file}.keras"), tmp_path / file
        make(num_classes=3, activation="exact").save(tmp_path / "plain.keras")
        convert.convert(source, str(target), layout)
        expected = list(names) if file == "model" else None
        assert (stated_class_names(str(target), 3) or None) == expected


def test_a_class_with_a_fixed_epsilon(tmp_path, capsys):
    """A folder names the class, and that of timm has 1e-6."""
    source, target = str(tmp_path / "hf"), str(tmp_path / "timm")
    config = tiny_config(layer_norm_epsilon=1e-12)
    model = randomize(VisionTransformer(config))
    save_checkpoint(model, source, layout="huggingface")
    command = [source, target, "--layout=timm"]
    assert convert.main(command) == 1
    error = capsys.readouterr().err
    assert "layer_norm_epsilon=1e-12" in error
    assert not pathlib.Path(target).exists()
    [advice] = re.findall(r"--layer_norm_epsilon=\S+", error)
    assert convert.main([*command, advice]) == 0
    assert from_checkpoint(target).config.layer_norm_epsilon == 1e-6


@pytest.mark.parametrize("size", ["", "32x", "1x2x3", "-3"])
def test_a_mistyped_size(size, capsys):
    with pytest.raises(SystemExit):
        inspect_checkpoint.main(["x.npz", f"--source_image_size={size}"])
    assert "must be a size such as 224 or 224x160" in capsys.readouterr().err


def test_errors_of_converting(tmp_path):
    source = str(path_of(TOKEN))
    with pytest.raises(ValueError, match="`target` must end in .keras"):
        convert.convert(source, "model.h5", "keras")
    with pytest.raises(ValueError, match="`layout` must be one of 'official'"):
        convert.convert(source, "model.h5", "flax")
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(
        tmp_path / "other.keras"
    )
    with pytest.raises(ValueError, match="no VisionTransformer but a Sequ"):
        convert.convert(
            str(tmp_path / "other.keras"), str(tmp_path / "x.npz"), "official"
        )


def test_a_target_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    convert.convert(str(path_of(TOKEN)), "~/out.keras", "keras")
    assert [path.name for path in tmp_path.iterdir()] == ["out.keras"]


def test_a_failed_conversion_leaves_no_draft(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space left on device")

    target = tmp_path / "m.keras"
    target.write_text("before")

    def half(model, path):
        with open(path, "w") as file:
            file.write("half")
        fail()

    monkeypatch.setattr(VisionTransformer, "save", half)
    source = str(path_of(TOKEN))
    assert convert.main([source, str(target), "--layout=keras"]) == 1
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_the_hints_reach_the_commands(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    shutil.copy(path_of("timm_rect.safetensors"), path)
    hints = ["--num_heads=3", "--source_image_size=24X40"]
    assert inspect_checkpoint.main([str(path), *hints]) == 0
    output = capsys.readouterr().out
    assert "image_size               (24, 40)" in output
    assert "variant        custom" in output
    out = str(tmp_path / "folder" / "out.keras")
    assert convert.main([str(path), out, "--layout=keras", *hints]) == 0
    model = keras.saving.load_model(out)
    assert (model.config.num_heads, model.config.image_size) == (3, (24, 40))
    # A .keras file knows its size; the flag resizes it.
    small = str(tmp_path / "small.keras")
    arguments = [out, small, "--layout=keras", "--image_size=16"]
    assert convert.main(arguments) == 0
    assert keras.saving.load_model(small).config.image_size == (16, 16)


def test_what_is_ignored_or_left_out_is_listed(tmp_path, capsys):
    arrays = stored_in("keras_hub")
    for name in list(arrays):
        if re.search(r"mha/(query|key|value)_dense/vars/1", name):
            del arrays[name]
    arrays["seed_generator"] = np.zeros(3, "f4")
    np.savez(tmp_path / "m.npz", **arrays)
    path = str(tmp_path / "m.npz")
    assert inspect_checkpoint.main([path, "--num_heads=3"]) == 0
    output = capsys.readouterr().out
    assert re.search(rf"arrays +{len(arrays)}, 3 of them ignored", output)
    assert re.search(r"block_00/attention/qkv/bias +\(left out: zero\)", output)
    assert re.search(r"\(ignored\) +seed_generator +\(3,\) +<f4", output)


def test_the_architecture_of_a_file_without_configuration(capsys, alone):
    arguments = [str(alone(TIMM)), "--num_heads=3", "--brief"]
    arguments.append("--architecture=vit_base_patch16_rpn_224")
    assert inspect_checkpoint.main(arguments) == 0
    assert re.search(r"norm_placement +after", capsys.readouterr().out)
    assert inspect_checkpoint.main([str(path_of(TOKEN)), arguments[-1]]) == 1
    assert "has no names of architectures" in capsys.readouterr().err


def test_a_hybrid_is_not_named_as_the_plain_variant():
    """Nor a model without the class token as one that has it."""
    for variant in VARIANTS.values():
        theirs = VARIANTS[inspect_checkpoint.variant_of(variant.config)].config
        for field in ("width", "depth", "stem_stages", "use_class_token"):
            assert getattr(theirs, field) == getattr(variant.config, field)
