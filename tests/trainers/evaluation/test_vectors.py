"""The vectors of images in a folder: what they are, and that none is lost."""

import dataclasses
import json
import pathlib
import shutil
import time

import keras
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from keras_vit.models.features import without_head
from keras_vit.texts import load_text_encoder, zero_shot
from tests import commands, pictures
from tests.golden import FOLDER as GOLDEN
from tests.tiny import LATER_KINDS, make, noise
from tests.trainers.made import write_photos
from trainers.data.datasets import ALL_SPLITS, open_dataset
from trainers.data.decoding import DataError
from trainers.data.readers.image_files import ImageFiles
from trainers.evaluation import embeddings as embedding_files
from trainers.evaluation.embeddings import (
    MANIFEST,
    EmbeddingWriter,
    open_embeddings,
)
from trainers.evaluation.file_predictions import expand_folders
from trainers.evaluation.predictions import make_load_image
from trainers.evaluation.vectors import (
    embed,
    embed_files,
    embed_texts,
    make_encoder,
    open_files,
)
from trainers.paths import ContentError, as_path
from trainers.training.run_folder import NamedModel

# JAX computes an image alone as it is written, and a batch as it compiles it.
EXACT = 1e-6 if keras.backend.backend() == "tensorflow" else 1e-5
ODD = {
    "alpha.png": pictures.COMMON["alpha.png"],
    "grey.jpg": pictures.COMMON["grey.jpg"],
    "palette.png": pictures.COMMON["palette.png"],
    "turned.jpg": pictures.COMMON["turn_6<.jpg"],
    "turned.tif": pictures.OTHER["turned.tif"],
    "tiny.png": pictures.encode(pictures.PIXELS[:1, :1]),
    "wide.png": pictures.encode(pictures.PIXELS[:1]),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    make(num_registers=2).save(path)
    return NamedModel(str(path))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Return the folder of odd files, one of them unreadable."""
    folder = tmp_path_factory.mktemp("odd")
    for name, content in ODD.items():
        (folder / name).write_bytes(content)
    (folder / "cut.jpg").write_bytes(pictures.UNREADABLE["cut.jpg"])
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return the data set of twelve photos of two classes in two splits."""
    places = 4 * ["train/cat", "train/dog"] + 2 * ["test/cat", "test/dog"]
    folder = write_photos(tmp_path_factory.mktemp("photos"), places)
    return open_dataset(f"folder:{folder}", eval_split=ALL_SPLITS)


@pytest.fixture(scope="module")
def whole(source, photos, tmp_path_factory):
    """Return the embeddings of the photos in four shards, of one command."""
    folder = tmp_path_factory.mktemp("whole")
    embed(source, photos, folder, batch_size=3, shard_rows=3)
    return open_embeddings(folder)


@pytest.fixture
def copied(whole, tmp_path):
    """Return a copy of that folder."""
    return pathlib.Path(shutil.copytree(whole.folder, tmp_path / "copied"))


def pixels_of(paths, source):
    shape = source.load_model().input_shape[1:]
    return np.stack(
        [make_load_image(shape, source.preprocess)(x) for x in paths]
    )


def patches(model, images, block=-1):
    """Return the class token and the patches after a block, by NumPy."""
    [(grid, prefix)] = model.features(images, [block], with_prefix=True)
    return np.asarray(prefix)[:, 0], np.asarray(grid)


EXPECTED = {
    "pooled": lambda model, x: without_head(model)(x),
    "token": lambda model, x: patches(model, x)[0],
    "mean": lambda model, x: patches(model, x)[1].mean((1, 2)),
    "grid": lambda model, x: patches(model, x)[1],
    "block:0": lambda model, x: patches(model, x, 0)[1].mean((1, 2)),
    "block:-1:token": lambda model, x: patches(model, x)[0],
    "block:1,0:grid": lambda model, x: np.concatenate(
        [patches(model, x)[1], patches(model, x, 0)[1]], -1
    ),
}


@pytest.mark.parametrize("vector", EXPECTED)
def test_each_vector_is_what_it_says(source, vector):
    model, images = source.load_model(), noise(2, 32, 32, 3)
    found = make_encoder(model, vector)(images)
    expected = EXPECTED[vector](model, images)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, EXACT, EXACT)


@pytest.mark.parametrize("vector", ["pooled", "block:1,0:grid"])
def test_vectors_are_those_of_the_model(source, odd, tmp_path, vector):
    """Of odd files, in batches of which the last one is shorter."""
    paths = expand_folders([str(odd)])
    unreadable = embed(
        source,
        open_files(paths, source),
        tmp_path,
        vector=vector,
        batch_size=3,
        max_bad_examples=1,
        shard_rows=3,
    )
    assert unreadable == [str(odd / "cut.jpg")]
    found = open_embeddings(tmp_path)
    assert found.paths == [str(odd / name) for name in sorted(ODD)]
    assert found.labels == found.splits == [None] * len(ODD)
    assert [shard.rows for shard in found.shards] == [2, 3, 2]
    model = source.load_model()
    expected = EXPECTED[vector](model, pixels_of(found.paths, source))
    assert found.description["shape"] == list(expected.shape[1:])
    expected = np.reshape(expected, (len(ODD), -1))
    np.testing.assert_allclose(found.vectors(), expected, EXACT, EXACT)
    again = embed_files(found, found.paths[2:4])
    np.testing.assert_allclose(again, expected[2:4], EXACT, EXACT)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports")
def test_vectors_are_those_of_an_export(source, odd, tmp_path, graphs):
    from keras_vit.export.contract import Serving
    from keras_vit.export.formats.saved_model import (
        make_endpoints,
        write_endpoints,
    )

    paths = expand_folders([str(odd / name) for name in ODD])
    embed(source, open_files(paths, source), tmp_path / "vectors")
    model = source.load_model()
    serving = Serving().for_model(model)
    write_endpoints(tmp_path / "saved", make_endpoints(model, serving))
    served = tf.saved_model.load(str(tmp_path / "saved"))
    expected = served.signatures["features"](
        images=tf.constant(pixels_of(paths, source))
    )["features"]
    found = open_embeddings(tmp_path / "vectors").vectors()
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-6)


def test_labels_and_splits_are_those_of_the_data(source, photos, tmp_path):
    options = {"batch_size": 5, "shard_rows": 4}
    embed(source, photos, tmp_path, dtype="float16", **options)
    found = open_embeddings(tmp_path)
    # Rounded up to whole batches; the second shard has both splits.
    assert [shard.rows for shard in found.shards] == [5, 5, 2]
    files = photos.reader.files
    assert found.paths == [path for rows in files.values() for path, _ in rows]
    assert found.labels == [path.split("/")[-2] for path in found.paths]
    assert found.splits == [path.split("/")[-3] for path in found.paths]
    table = pyarrow.parquet.read_table(tmp_path / found.shards[0].file)
    assert str(table.schema.field("vector").type) == (
        "fixed_size_list<element: halffloat not null>[24]"
    )
    exact = without_head(source.load_model())(pixels_of(found.paths, source))
    np.testing.assert_allclose(found.vectors(), exact, 1e-3, 1e-3)


def test_an_unreadable_image_shifts_no_label_or_split(source, photos, tmp_path):
    """It is among those of the first split, in the batch of both."""
    (tmp_path / "bad.png").write_bytes(b"no image")
    test, train = (photos.reader.files[name] for name in ("test", "train"))
    rows = [test[0], (str(tmp_path / "bad.png"), test[1][1]), *test[2:]]
    reader = dataclasses.replace(
        photos.reader, files={"test": rows, "train": train}
    )
    dataset = dataclasses.replace(photos, reader=reader)
    embed(source, dataset, tmp_path / "out", max_bad_examples=1)
    found = open_embeddings(tmp_path / "out")
    kept = [path for path, _ in (test[0], *test[2:], *train)]
    assert found.paths == kept
    assert found.labels == [path.split("/")[-2] for path in kept]
    assert found.splits == [path.split("/")[-3] for path in kept]
    exact = without_head(source.load_model())(pixels_of(kept, source))
    np.testing.assert_allclose(found.vectors(), exact, EXACT, EXACT)


def test_vectors_of_a_shard_come_in_several_blocks(whole, monkeypatch):
    monkeypatch.setattr(embedding_files, "BLOCK_ROWS", 2)
    starts, blocks = zip(*whole.blocks())
    assert starts == (0, 2, 3, 5, 6, 8, 9, 11)
    tables = [
        pyarrow.parquet.read_table(whole.folder / shard.file)
        for shard in whole.shards
    ]
    expected = [row for x in tables for row in x.column("vector").to_pylist()]
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    np.testing.assert_array_equal(whole.vectors(), expected)


def test_several_labels_are_lists(source, photos, tmp_path):
    path, *others = [row[0] for row in photos.reader.files["train"]][:3]
    table = tmp_path / "labels.csv"
    table.write_text(
        f"path,labels,split\n{path},cat|dog,test\n{others[0]},,test\n"
        f"{others[1]},dog,test\n"
    )
    dataset = open_dataset(f"csv:{table}", eval_split=ALL_SPLITS)
    embed(source, dataset, tmp_path / "out")
    found = open_embeddings(tmp_path / "out")
    labels = dict(zip(found.paths, found.labels))
    assert [labels[x] for x in (path, *others)] == [["cat", "dog"], [], ["dog"]]


def test_images_without_labels_have_none(source, photos, tmp_path):
    path = photos.name.removeprefix("folder:")
    dataset = open_dataset(f"images:{path}", eval_split=ALL_SPLITS)
    embed(source, dataset, tmp_path)
    found = open_embeddings(tmp_path)
    assert found.labels == [None] * 12
    assert found.description["class_names"] == []
    assert {*found.splits} == {"train", "test"}


class Alternatives(ImageFiles):
    """Gives each image the classes up to its own, all of them right."""

    def read(self, ranges):
        rows = super().read(ranges)
        return rows.map(lambda path, n, name: (path, tf.range(n + 1), name))


def test_several_right_classes_are_lists(source, photos, tmp_path):
    reader = Alternatives(photos.class_names, photos.reader.files)
    dataset = dataclasses.replace(photos, reader=reader)
    embed(source, dataset, tmp_path, batch_size=5)
    found = open_embeddings(tmp_path)
    assert [x[-1] for x in found.labels] == [
        path.split("/")[-2] for path in found.paths
    ]
    assert {len(label) for label in found.labels} == {1, 2}


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize(
    ("moment", "count"), [("write_table", 1), ("write_atomically", 3)]
)
def test_nothing_is_lost_or_doubled(
    source, photos, whole, tmp_path, monkeypatch, moment, count
):
    """Killed before a shard is whole, or before the manifest has it."""
    owner = {
        "write_table": pyarrow.parquet,
        "write_atomically": embedding_files,
    }[moment]
    real, calls = getattr(owner, moment), []

    def kill(*arguments, **options):
        calls.append(1)
        if len(calls) == count + (moment == "write_atomically"):
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(owner, moment, kill)
    parts = tmp_path / "parts"
    with pytest.raises(Killed):
        embed(source, photos, parts, batch_size=3, shard_rows=3)
    with pytest.raises(ValueError, match="must be complete"):
        open_embeddings(parts)
    (parts / ".draft-part").write_bytes(b"of a process that was killed")
    embed(source, photos, parts, batch_size=3, shard_rows=3)
    again = open_embeddings(parts)
    assert whole.shards == again.shards and len(again) == 12
    assert {x.name for x in parts.iterdir()} == {
        MANIFEST,
        *(shard.file for shard in again.shards),
    }


def test_tables_of_something_else_stay(source, photos, tmp_path):
    foreign = tmp_path / "part-00000-c2f0.snappy.parquet"
    foreign.write_bytes(b"what Spark has written")
    with pytest.raises(ValueError, match="`out` must be .*part-00000-c2f0"):
        embed(source, photos, tmp_path, batch_size=12)
    assert [*tmp_path.iterdir()] == [foreign]
    kept = foreign.rename(tmp_path / "kept")
    embed(source, photos, tmp_path, batch_size=12)
    kept.rename(foreign)
    (tmp_path / "part-00007.parquet").touch()  # Of a command with more shards.
    embed(source, photos, tmp_path, batch_size=12)
    assert foreign.exists() and not (tmp_path / "part-00007.parquet").exists()


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on(tmp_path, subprocess_environment):
    """On the other backend, whose vectors are the same."""
    model = tmp_path / "model.keras"
    make(image_size=8, patch_size=2, channels=1).save(model)
    words = ["-m", "trainers.embed", f"--model={model}", "--dataset=digits"]
    words += ["--batch_size=32", "--shard_rows=32", f"--out={tmp_path}/out"]
    other = {"tensorflow": "jax", "jax": "tensorflow"}
    environment = {
        **subprocess_environment,
        "KERAS_BACKEND": other[keras.backend.backend()],
    }
    process = commands.start(words, environment, tmp_path / "output")
    shards = lambda: len([*tmp_path.glob("out/part-*.parquet")])  # noqa: E731
    while shards() < 2 and process.exitcode is None:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert 2 <= shards() < 57, (tmp_path / "output").read_text()
    result = commands.run(words, environment)
    assert result.returncode == 0, result.stderr
    assert "1,797 vectors of 24 float32 in 57 files" in result.stdout
    found = open_embeddings(tmp_path / "out")
    dataset = open_dataset("digits", eval_split=ALL_SPLITS)
    embed(NamedModel(str(model)), dataset, tmp_path / "here")
    expected = open_embeddings(tmp_path / "here")
    assert found.paths == expected.paths and found.labels == expected.labels
    np.testing.assert_allclose(
        found.vectors(), expected.vectors(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    "entry, change",
    [
        ("vector", {"vector": "mean"}),
        ("dtype", {"dtype": "float16"}),
        ("preprocess", {"preprocess": "central_crop(5)"}),
        ("model_digest", {"source": "other"}),
        ("data_digest", {"dataset": "fewer"}),
    ],
)
def test_other_embeddings_are_not_continued(
    source, photos, copied, tmp_path, entry, change
):
    if "source" in change:
        make(num_registers=2, layer_norm_epsilon=1e-3).save(
            tmp_path / "model.keras"
        )
        change = {"source": NamedModel(str(tmp_path / "model.keras"))}
    if "dataset" in change:
        reader = photos.reader
        files = {**reader.files, "test": reader.files["test"][::-1]}
        reader = dataclasses.replace(reader, files=files)
        change = {"dataset": dataclasses.replace(photos, reader=reader)}
    with pytest.raises(ValueError, match=f"`out`.*{entry}: "):
        embed(
            **{"source": source, "dataset": photos, **change},
            folder=copied,
        )


def test_a_model_of_another_file_name_is_the_same(
    source, photos, copied, tmp_path
):
    source.load_model().save(tmp_path / "renamed.keras")
    renamed = NamedModel(str(tmp_path / "renamed.keras"))
    assert embed(renamed, photos, copied) == []


def test_unreadable_images_count_across_commands(source, photos, tmp_path):
    reader, bad = photos.reader, tmp_path / "bad"
    files = []
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(b"no image")
        files.append((str(tmp_path / name), 0))
    rows = [files[0], *reader.files["train"][:3], files[1]]
    reader = dataclasses.replace(reader, files={"train": rows})
    dataset = dataclasses.replace(photos, reader=reader, eval_split="train")
    options = {"batch_size": 1, "shard_rows": 1}
    for _ in range(2):  # The second one begins at the second of them.
        with pytest.raises(DataError, match="max_bad_examples=1"):
            embed(source, dataset, bad, max_bad_examples=1, **options)
    found = embed(source, dataset, bad, max_bad_examples=2, **options)
    assert found == [path for path, _ in files]
    assert len(open_embeddings(bad)) == 3


def damage_bytes(folder):
    path = folder / "part-00001.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_width(folder):
    """Put a shard of other vectors in the place of one, with its digest."""
    path = folder / "part-00001.parquet"
    table = pyarrow.parquet.read_table(path)
    vectors = table.column("vector").combine_chunks().flatten()[::2]
    shorter = pyarrow.FixedSizeListArray.from_arrays(vectors, 12)
    table = table.set_column(3, "vector", shorter)
    pyarrow.parquet.write_table(table, path)
    content = json.loads((folder / MANIFEST).read_text())
    content["shards"][1]["digest"] = embedding_files.digest_file(path)
    (folder / MANIFEST).write_text(json.dumps(content))


def forget_shard(folder):
    content = json.loads((folder / MANIFEST).read_text())
    del content["shards"][1]
    (folder / MANIFEST).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage, message",
    [
        (damage_bytes, "part-00001.parquet.*SHA-256"),
        (change_width, r"part-00001.parquet.*\[12\]"),
        (forget_shard, "do not follow each other"),
        (
            lambda folder: (folder / "part-00001.parquet").unlink(),
            "part-00001.parquet.*missing",
        ),
        (lambda folder: (folder / MANIFEST).write_text("{}"), "'form'"),
    ],
    ids=["bytes", "width", "manifest", "missing", "empty"],
)
def test_damage_is_found_at_the_door(copied, damage, message):
    damage(copied)
    with pytest.raises(ContentError, match=message):
        open_embeddings(copied)


@pytest.mark.parametrize(
    "vector", ["tokne", "block:", "block:9", "block:0:map", "block:1,", "5"]
)
def test_unknown_vectors_are_refused(source, vector):
    with pytest.raises(ValueError, match="`vector`"):
        make_encoder(source.load_model(), vector)


def test_a_distilled_head_reads_two_tokens():
    model = make(**LATER_KINDS["deit"])
    assert make_encoder(model).output_shape == (None, 2, 24)


def test_vectors_that_a_model_lacks_are_refused():
    model = make(use_class_token=False, pooling="none", num_classes=0)
    for vector in ("token", "block:0:token", "pooled"):
        with pytest.raises(ValueError, match="`vector`"):
            make_encoder(model, vector)
    assert make_encoder(model, "mean").output_shape == (None, 24)


def test_numbers_that_are_too_large_are_refused(photos, tmp_path):
    layers = [keras.layers.Rescaling(1e4), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((9, 9, 3)), *layers])
    model.save(tmp_path / "large.keras")
    source = NamedModel(str(tmp_path / "large.keras"))
    with pytest.raises(ValueError, match="`dtype`.*/1?[0-9].png"):
        embed(
            source,
            photos,
            tmp_path / "out",
            dtype="float16",
            preprocess="value_range(0, 255)",
        )


def test_files_that_do_not_exist_are_refused(source, tmp_path):
    with pytest.raises(ValueError, match="none.png"):
        open_files([str(tmp_path / "none.png")], source)


def test_a_file_that_is_named_twice_is_read_once(source, odd):
    names = [str(odd / name) for name in ("wide.png", "tiny.png", "wide.png")]
    data = open_files(names, source)
    assert [path for path, _ in data.reader.files["files"]] == names[:2]


def test_files_of_another_folder_are_not_continued(source, odd, tmp_path):
    (tmp_path / "other").mkdir()
    copy = shutil.copy(odd / "wide.png", tmp_path / "other")
    out = tmp_path / "out"
    embed(source, open_files([str(odd / "wide.png")], source), out)
    with pytest.raises(ValueError, match="`out`.*data_digest: "):
        embed(source, open_files([str(copy)], source), out)


def test_a_second_command_is_refused(source, photos, tmp_path):
    from trainers.training.run_folder import RunFolder

    with RunFolder(tmp_path).claimed("out"):
        with pytest.raises(OSError, match="`out` is in use"):
            embed(source, photos, tmp_path)


def test_a_writer_of_nothing_leaves_a_manifest(tmp_path):
    description = {
        **dict.fromkeys(("source", "vector", "directory"), ""),
        **{"dtype": "float32", "shape": [3], "num_images": 2},
        **{"has_several_labels": False, "class_names": []},
    }
    assert EmbeddingWriter(tmp_path / "new", description).position == 0
    assert (tmp_path / "new" / MANIFEST).exists()
    with pytest.raises(ValueError, match="`out`.*shape: .3. there, .4. here"):
        EmbeddingWriter(tmp_path / "new", {**description, "shape": [4]})


def test_texts_are_as_near_to_images_as_zero_shot_says(odd, tmp_path):
    """With the scale and the bias that the model learned, they are logits."""
    tower, texts = str(GOLDEN / "towers/siglip"), ["a cat", "dogs, two"]
    source = NamedModel(tower)
    paths = [str(odd / name) for name in ("grey.jpg", "wide.png", "turned.tif")]
    for vector in ("output", "pooled"):
        data = open_files(paths, source)
        embed(source, data, as_path(tmp_path / vector), vector=vector)
    found = open_embeddings(tmp_path / "output")
    cosines = found.vectors(unit=True) @ embed_texts(found, texts).T
    model = zero_shot(tower, texts, ["{}"]).with_classifier_activation(None)
    shape = model.input_shape[1:]
    images = [make_load_image(shape, source.preprocess)(path) for path in paths]
    logits = keras.ops.convert_to_numpy(model(np.stack(images)))
    text = load_text_encoder(tower).model.config
    np.testing.assert_allclose(
        cosines * text.logit_scale + text.logit_bias, logits, atol=1e-4
    )
    with pytest.raises(ValueError, match="`text` needs.*vector='pooled'"):
        embed_texts(open_embeddings(tmp_path / "pooled"), texts)
    other = {**found.description, "model_digest": "0" * 16}
    with pytest.raises(ValueError, match="`model` must be the one that"):
        embed_texts(dataclasses.replace(found, description=other), texts)
