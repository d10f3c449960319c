import json

import pytest

from trainers.evaluate import read_other


@pytest.fixture
def folder(tmp_path, digits):
    """Return the folder of an evaluation of the test images of the digits."""
    report = {"model": "other", "dataset": "digits", "split": digits.eval_split}
    (tmp_path / "evaluation.json").write_text(json.dumps(report))
    return tmp_path


def test_an_evaluation_of_the_same_images_is_read(folder, digits):
    assert read_other(str(folder), digits)["model"] == "other"


@pytest.mark.parametrize(
    "change, fault",
    [
        ({"dataset": "cifar10"}, "evaluation of 'digits', split 'test'.*cifar"),
        ({"split": "train"}, "evaluation of 'digits', split 'test'.*train"),
    ],
)
def test_an_evaluation_of_other_images_is_refused(
    folder, digits, change, fault
):
    path = folder / "evaluation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=f"`compare` must be an {fault}"):
        read_other(str(folder), digits)


def test_a_folder_without_an_evaluation_is_refused(tmp_path, digits):
    with pytest.raises(ValueError, match="evaluate that run first"):
        read_other(str(tmp_path), digits)
