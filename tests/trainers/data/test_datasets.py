import dataclasses

import pytest

from trainers.data.datasets import open_dataset
from trainers.data.file_lists import check_is_no_path


class TestSplits:
    def test_may_be_chosen(self):
        dataset = open_dataset(
            "digits", train_split="train[:98%]", eval_split="train[98%:]+test"
        )
        counts = [
            dataset.num_examples(split)
            for split in (dataset.train_split, dataset.eval_split)
        ]
        assert counts == [1413, 29 + 355]
        assert len(list(dataset.examples(dataset.eval_split))) == counts[1]

    @pytest.mark.parametrize(
        "argument, split, hint",
        [
            ("train_split", "training", "Unknown split"),
            ("eval_split", "train[:", "Error parsing"),
            ("train_split", "train[7:7]", "no examples"),
        ],
    )
    def test_that_are_none(self, argument, split, hint):
        with pytest.raises(ValueError, match=rf"`{argument}`.*\({hint}"):
            open_dataset("digits", **{argument: split})

    @pytest.mark.parametrize("num_parts", [1, 7, 500])
    def test_parts_cover_a_split_once(self, digits, num_parts):
        split = "train[100:300]+test[5:20]"
        parts = [
            digits.ranges(split, part, num_parts) for part in range(num_parts)
        ]
        found = [
            (name, index)
            for part in parts
            for name, first, last in part
            for index in range(first, last)
        ]
        want = [("train", i) for i in range(100, 300)]
        assert found == want + [("test", i) for i in range(5, 20)]
        sizes = {sum(b - a for _, a, b in part) for part in parts}
        assert max(sizes) - min(sizes) <= 1

    def test_ranges_are_what_tfds_reads(self, digits):
        want = [
            (row["image"].numpy().tobytes(), int(row["label"]))
            for split in ("train[1400:]", "test[:9]")
            for row in digits.reader.builder.as_dataset(split)
        ]
        assert want == [
            (image.numpy().tobytes(), int(label))
            for image, label in digits.examples("train[1400:]+test[:9]")
        ]


def test_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="digits, .*cifar10, .*'digit'"):
        open_dataset("digit")


def test_a_data_set_without_a_train_split_names_the_flag(digits):
    dataset = dataclasses.replace(digits, train_split=None)
    fault = "`train_split` must name .*has train, test.*train_split=None"
    with pytest.raises(ValueError, match=fault):
        dataset.num_examples(dataset.train_split)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("photos", "folder"),
        ("scenes", "pairs"),
        ("labels.csv", "csv"),
        ("a.TSV", "csv"),
    ],
)
def test_a_path_without_its_kind_is_told_which(
    name, kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    check_is_no_path(name)  # It may be the name of something else.
    if kind == "folder":
        (tmp_path / name).mkdir()
    elif kind == "pairs":
        (tmp_path / name / "images").mkdir(parents=True)
    else:
        (tmp_path / name).touch()
    message = rf"Did you mean '{kind}:{name}'\?$"
    with pytest.raises(ValueError, match=message):
        check_is_no_path(name)
    with pytest.raises(ValueError, match=message):
        open_dataset(name)
    (tmp_path / "notes.txt").touch()
    check_is_no_path("notes.txt")
