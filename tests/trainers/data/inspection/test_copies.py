import itertools
import random

from trainers.data.inspection.copies import find_copies, find_near_copies
from trainers.data.inspection.examination import Examined


def image(name, look=None, digest=None):
    return Examined(name, "train", "cat", digest or name, look=look)


def names(groups):
    return sorted(sorted(image.name for image in group) for group in groups)


def test_equal_files_are_copies():
    rows = [image("a", digest="1"), image("b"), image("c", digest="1")]
    assert names(find_copies(rows)) == [["a", "c"]]


def test_looks_of_few_different_bits_are_near_copies():
    rows = [
        image("a", 0),
        image("b", 0b1111),
        image("c", 0b1111 << 60),
        image("far", 0b11111 << 30),
        image("flat"),
        image("flat too"),
    ]
    assert names(find_near_copies(rows)) == [["a", "b", "c"]]


def test_a_copy_is_no_near_copy():
    rows = [image("a", 5, "1"), image("b", 5, "1")]
    assert not find_near_copies(rows)


def test_no_pair_is_missed():
    """As by comparing each with each other."""
    draws = random.Random(0)
    looks = [draws.getrandbits(64) for _ in range(150)]
    for look in looks[:100]:
        for bit in draws.sample(range(64), draws.randrange(7)):
            look ^= 1 << bit
        looks.append(look)
    rows = [image(str(index), look) for index, look in enumerate(looks)]
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
