"""The mathematics of the probes."""

import numpy as np
import pytest

import trainers.evaluation.predictions
import trainers.evaluation.probing
from tests.trainers.evaluation.features import (
    make_features,
    written_out_few_shot,
)
from trainers.evaluation.probing import PROBES, ProbeChoices, few_shot, knn


@pytest.mark.parametrize("size", [4, 50, 250])
def test_few_shot_is_the_protocol_written_out(size):
    """Supports of 6 to 150 images: fewer and more than features."""
    features = make_features(size)
    choices = ProbeChoices(shots=(1, 5, 25), num_seeds=3)
    found = few_shot(features, choices)
    assert list(found) == ["few_shot/1", "few_shot/5", "few_shot/25"]
    for shots in choices.shots:
        expected = [written_out_few_shot(features, shots, s) for s in range(3)]
        assert found[f"few_shot/{shots}"] == pytest.approx(expected)
    # The draws differ, and the features tell something.
    assert len(set(found["few_shot/5"])) > 1
    assert np.mean(found["few_shot/25"]) > 1.5 / 6


def test_a_class_with_fewer_images_than_shots_gives_all():
    features = make_features(20, num_train=60)
    few = np.bincount(features.train_classes)
    found = few_shot(features, ProbeChoices((max(few), 1000), num_seeds=2))
    all_of_them = found[f"few_shot/{max(few)}"]
    assert found["few_shot/1000"] == pytest.approx(all_of_them)
    expected = written_out_few_shot(features, 1000, 0)
    assert found["few_shot/1000"] == pytest.approx([expected] * 2)


@pytest.mark.parametrize("neighbors", [1, 20])
def test_knn_is_the_vote_written_out(neighbors):
    features = make_features(30, num_test=300)
    train, test = (
        f / np.linalg.norm(f, axis=-1, keepdims=True)
        for f in (features.train, features.test)
    )
    cosines = (test @ train.T).astype("float64")
    expected = []
    for row in cosines:
        votes = np.zeros(6)
        for index in np.argsort(-row)[:neighbors]:
            votes[features.train_classes[index]] += np.exp(row[index] / 0.07)
        expected.append(votes.argmax())
    truths = features.test_truths
    found = knn(features, ProbeChoices(neighbors=(neighbors, 3)))
    assert found[f"knn/{neighbors}"] == [
        truths[np.arange(len(truths)), expected].mean()
    ]
    # Not only the mean: the same predictions count as right for each image.
    agreeing = features._replace(test_truths=np.eye(6, dtype=bool)[expected])
    found = knn(agreeing, ProbeChoices(neighbors=(neighbors,)))
    assert found[f"knn/{neighbors}"] == [1.0]


def test_a_test_image_may_have_several_right_classes():
    features = make_features(8)
    both = features.test_truths.copy()
    both[:, 0] = True
    more = features._replace(test_truths=both)
    choices = ProbeChoices(shots=(5,), num_seeds=1)
    for function in PROBES.values():
        [strict], [lenient] = (
            next(iter(function(f, choices).values())) for f in (features, more)
        )
        assert strict < lenient < 1


def test_chunks_of_the_test_images_change_nothing(monkeypatch):
    features = make_features(8)
    choices = ProbeChoices()
    whole = [probe(features, choices) for probe in PROBES.values()]
    monkeypatch.setattr(trainers.evaluation.probing, "CHUNK_IMAGES", 64)
    assert [probe(features, choices) for probe in PROBES.values()] == whole


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shots": (5, 0)}, "`shots` must be.*5, 0"),
        ({"shots": ()}, "`shots`"),
        ({"neighbors": (-1,)}, "`neighbors` must be numbers of 1 or more"),
        ({"num_seeds": 0}, "`num_seeds` must be 1 or more"),
    ],
)
def test_numbers_that_are_none_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ProbeChoices(**changes)


def test_more_neighbours_than_images_are_refused():
    features = make_features(4, num_train=30)
    with pytest.raises(ValueError, match="at most the number.*30.*(20, 31)"):
        knn(features, ProbeChoices(neighbors=(20, 31)))


@pytest.mark.parametrize("num_train, number", [(9, 9), (30, 20)])
def test_no_more_neighbours_than_images_if_none_were_asked_for(
    num_train, number
):
    features = make_features(4, num_train=num_train)
    by_name = knn(features, ProbeChoices(neighbors=(number,)))
    assert knn(features, ProbeChoices()) == by_name
