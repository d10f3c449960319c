"""The commands around embeddings, as a user runs them."""

import base64
import json
import re

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests import commands
from tests.tiny import make
from tests.trainers.made import waves, write_photos
from trainers.evaluation.embeddings import open_embeddings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model, photos and their embeddings."""
    folder = tmp_path_factory.mktemp("commands")
    make().save(folder / "model.keras")
    places = 6 * ["train/cat", "train/dog"] + 2 * ["test/cat", "test/dog"]
    write_photos(folder / "photos", places, draw=lambda i: waves(i // 4))
    (folder / "photos/train/cat/none.png").write_bytes(b"no image")
    result = run(
        folder,
        *("embed", "--model=model.keras", "--dataset=folder:photos"),
        *("--out=vectors", "--max_bad_examples=1", "--batch_size=4"),
        "--shard_rows=4",
    )
    assert result.returncode == 0, result.stderr
    assert "unreadable: photos/train/cat/none.png" in result.stdout
    assert "16 vectors of 24 float32 in 5 files" in result.stdout
    return folder


def run(folder, command, *words):
    module = f"trainers.{command}"
    return commands.run(["-m", module, *words], commands.environment(), folder)


@pytest.mark.slow
def test_similar_photos_and_duplicates(folder):
    photo = "photos/train/dog/5.png"
    result = run(
        folder, "similar", "vectors", photo, "--top=4", "--out=similar.html"
    )
    assert result.returncode == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert first == photo and len(lines) == 4
    # Each picture is there four times.
    assert all(line.startswith("  1.0000  photos/") for line in lines)
    assert (folder / "similar.html").read_text().count("<img ") == 5
    result = run(
        folder, "similar", "vectors", "--duplicates=0.99999", "--format=csv"
    )
    groups = [line.split(",")[0] for line in result.stdout.splitlines()[1:]]
    assert groups == [f"Group {i // 4 + 1}: 4 images" for i in range(16)]


@pytest.mark.slow
def test_another_model_in_the_place_of_the_first_is_refused(folder, tmp_path):
    manifest = json.loads((folder / "vectors/manifest.json").read_text())
    assert manifest["source"] == {"model": str(folder / "model.keras")}
    manifest["model_digest"] = "0" * 16
    (tmp_path / "vectors").mkdir()
    for shard in manifest["shards"]:
        content = (folder / "vectors" / shard["file"]).read_bytes()
        (tmp_path / "vectors" / shard["file"]).write_bytes(content)
    (tmp_path / "vectors/manifest.json").write_text(json.dumps(manifest))
    photo = "photos/train/dog/5.png"
    result = run(folder, "similar", str(tmp_path / "vectors"), photo)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: `model` must be the one that")


@pytest.mark.slow
def test_labels_that_somebody_corrected_are_not_overwritten(folder):
    words = ("check_labels", "vectors", "--out=checked", "--neighbors=2")
    result = run(folder, *words)
    assert result.returncode == 0, result.stderr
    assert "of 16 labels are probably wrong" in result.stdout
    assert (folder / "checked/suspects.html").exists()
    result = run(folder, *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert "labels.csv" in result.stderr


@pytest.mark.slow
def test_a_map_of_some_of_the_images(folder):
    result = run(folder, "map", "vectors", "--out=map.html", "--most_images=5")
    assert result.returncode == 0, result.stderr
    size = (folder / "map.html").stat().st_size
    assert f"Page: map.html, {size / 1000:,.0f} kB" in result.stdout
    page = (folder / "map.html").read_text()
    assert "5 of 16 pictures" in page
    content = json.loads(re.search(r'id="content">(.*?)</script>', page)[1])
    assert content["tiles"] == [*range(5)]
    vectors = open_embeddings(folder / "vectors")
    rows = [vectors.paths.index(name) for name in content["names"]]
    assert len({*rows}) == 5
    classes = np.frombuffer(base64.b64decode(content["classes"]), "<u2")
    labels = [content["labels"][number] for number in classes]
    assert labels == [vectors.labels[row] for row in rows]
    data = base64.b64decode(content["places"])
    places = np.frombuffer(data, "<u2").reshape(5, 2)
    unit = vectors.vectors(unit=True)
    expected = PCA(2, svd_solver="full").fit(unit).transform(unit)[rows]
    for axis in (0, 1):  # Up to its sign and scale.
        likeness = np.corrcoef(places[:, axis], expected[:, axis])[0, 1]
        assert abs(likeness) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, answer",
    [
        (["similar", "photos", "a.png"], "`embeddings`"),
        (["similar", "vectors", "a.png", "--duplicates=0.9"], "either photos"),
        (["similar", "vectors", "--text=a cat"], "--vector=output"),
        (["map", "vectors", "--out=map.png"], "`out`"),
        (["embed", "--out=x", "--model=m", "--dataset=d", "photos"], "dataset"),
        (["embed", "--out=x", "--model=m"], "files, folders or --dataset"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(folder, words, answer):
    result = run(folder, *words)
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and last.startswith("Error: ")
    assert answer in last and "Traceback" not in result.stderr
