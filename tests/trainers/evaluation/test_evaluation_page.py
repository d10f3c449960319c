import re

import numpy as np
import pytest

from keras_vit.known import KnownScore
from trainers.evaluation.evaluation_page import write_evaluation_page
from trainers.evaluation.image_predictions import (
    ImagePrediction,
    OtherModel,
    Pictures,
    TellingImages,
)
from trainers.evaluation.scores import Tally, wilson_interval

NAMES = ["<cat>", "dog", "犬"]
LOGITS = np.array(
    [[4.0, 0, 0], [3, 1, 0], [2, 3, 0], [0, 5, 0], [0, 1, 2], [0, 2, 1.5]]
)
LABELS = [0, 0, 0, 1, 2, 2]
SCORES = np.float32([5, 4, 0.5, 3, -1, 2])
KNOWN = KnownScore("energy", threshold=1.0)


@pytest.fixture
def make_page(tmp_path):
    """Return a function that writes a page and returns its text."""
    truths = np.eye(3, dtype=bool)[LABELS]
    tally = Tally(NAMES, known=KNOWN)
    tally.add(LOGITS, truths, SCORES)
    exponents = np.exp(LOGITS)
    shares = exponents / exponents.sum(-1, keepdims=True)
    report = {
        "model": "saved_models/a",
        "dataset": "folder:photos",
        "split": "test",
        "num_left_out": 2,
        **tally.report(),
    }
    pictures = {n: Pictures(f"photos/{n}.jpg", b"image", b"") for n in range(6)}

    all_bins = tally.bins()

    def make(confusion=tally.confusion, bins=all_bins, other=None):
        telling = TellingImages(other.predictions if other else {}, KNOWN)
        names = [f"photos/{n}.jpg" for n in range(6)]
        images = np.zeros((6, 1, 1, 1))
        telling.add(np.arange(6), images, LOGITS, shares, truths, names, SCORES)
        path = tmp_path / "evaluation.html"
        write_evaluation_page(
            *(path, report, NAMES, confusion, bins, tally.curves()),
            *(telling, pictures, other),
        )
        return path.read_text(encoding="utf-8")

    make.report = report
    return make


def section(page, title):
    return page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]


def test_figures_and_classes_in_the_order_of_their_f1(make_page):
    page = make_page()
    assert "6 images of folder:photos, split test; 2 left out" in page
    assert "0.6667 (95 %: 0.3000 to 0.9032)" in page
    assert not re.search(r"<script|https?:|<link|<cat>", page)
    part = section(page, "Classes")
    rows = re.findall(r"<tr><th>([^<]*)</th>((?:<td>[^<]*</td>)+)</tr>", part)
    assert [
        (name, re.findall(r"<td>([^<]*)</td>", text)) for name, text in rows
    ] == [
        ("dog", ["1", "0.3333", f"1.0000 {interval(1, 1)}", "0.5000"]),
        ("犬", ["2", "1.0000", f"0.5000 {interval(1, 2)}", "0.6667"]),
        ("&lt;cat&gt;", ["3", "1.0000", f"0.6667 {interval(2, 3)}", "0.8000"]),
    ]
    assert "always answering the largest class</th><td>0.5000</td>" in page
    assert "These images chose" not in page


def interval(num_hits, number):
    """Return how the page shows the interval of a share."""
    low, high = wilson_interval(num_hits, number)
    return f"(95 %: {low:.4f} to {high:.4f})"


def test_a_page_says_what_was_chosen_by_its_images(make_page):
    make_page.report["chosen_on_split"] = "model"
    assert "These images chose the model" in make_page()


def test_a_mistake_in_the_matrix_leads_to_its_images(make_page):
    part = section(make_page(), "Confusion matrix")
    assert '<a href="#cell-0-1">1</a>' in part
    assert '<a href="#cell-2-1">1</a>' in part
    assert part.count("<a ") == 2
    cell = part.split('<section id="cell-0-1">')[1].split("</section>")[0]
    assert "&lt;cat&gt; predicted as dog" in cell
    assert 'title="photos/2.jpg"' in cell
    assert cell.count("<figure") == 1


def test_the_worst_mistake_comes_first(make_page):
    page, photos = make_page(), r'title="photos/(\d).jpg"'
    found = re.findall(photos, section(page, "Worst mistakes"))
    assert found == ["2", "5"]  # Of 70 % and 58 %.
    found = re.findall(photos, section(page, "Least certain"))
    assert found[0] == "5" and len(found) == 6


def test_what_is_refused_and_how_accurate_the_rest_is(make_page):
    page, photos = make_page(), r'title="photos/(\d).jpg"'
    assert re.findall(photos, section(page, "Unknown")) == ["4", "2"]
    part = section(page, "Answers and accuracy")
    assert "66.7% of the images, with an accuracy of 75.0%" in part
    assert '<line x1="160.0" y1="0" x2="160.0" y2="240"/>' in part
    # By their scores: right, right, right, wrong, wrong, right. From 60 %.
    [points] = re.findall(r'class="score" points="([^"]*)"', part)
    found = [[float(x) for x in pair.split(",")] for pair in points.split()]
    rates = np.cumsum([1, 1, 1, 0, 0, 1]) / np.arange(1, 7)
    expected = [[40 * i, 600 * (1 - x)] for i, x in enumerate(rates, 1)]
    np.testing.assert_allclose(found, expected, atol=0.06)


def test_the_curve_of_a_model_that_is_not_calibrated():
    tally = Tally(NAMES)
    tally.add(LOGITS, np.eye(3, dtype=bool)[LABELS])
    assert "known" not in tally.report()
    [(name, rates)] = tally.curves().items()
    # By their probabilities: 3, 0, 1, 2, 4, 5.
    expected = np.cumsum([1, 1, 1, 0, 1, 0]) / np.arange(1, 7)
    np.testing.assert_allclose(rates, expected)
    assert name == "probability"


def test_images_that_only_one_model_gets_right(make_page):
    """The third image is wrong here, and so is the sixth; see LOGITS."""
    others = {n: ImagePrediction(LABELS[n], LABELS[n], 0.75) for n in range(6)}
    others[3] = ImagePrediction(1, 2, 0.625)
    others[5] = ImagePrediction(2, 0, 0.5)
    report = {**make_page.report, "model": "<b>", "f1/dog": 0.25}
    page = make_page(other=OtherModel(report, others))
    assert "<td>0.5000</td><td>0.2500</td></tr>" in section(page, "Classes")
    won = section(page, "Right here, wrong with &lt;b&gt;")
    lost = section(page, "Wrong here, right with &lt;b&gt;")
    assert re.findall(r"photos/(\d).jpg\">", won) == ["3", "3"]
    assert re.findall(r"photos/(\d).jpg\">", lost) == ["2", "2"]
    assert "the other: 犬 62.5%" in won
    assert "the other: &lt;cat&gt; 75.0%" in lost
