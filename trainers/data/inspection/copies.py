"""Finding images that are copies of each other, exact or nearly so."""

import collections
from collections.abc import Iterable, Sequence

from trainers.data.inspection.examination import Examined

MOST_DIFFERENT_BITS = 4  # Of 64: the same photo, stored or scaled anew.
NUM_BANDS = MOST_DIFFERENT_BITS + 1
LARGEST_BUCKET = 500  # Larger ones are of bits that say nothing.


def find_copies(images: Sequence[Examined]) -> list[list[Examined]]:
    """Return the groups of images whose files are equal."""
    groups = collections.defaultdict(list)
    for image in images:
        groups[image.digest].append(image)
    return [group for group in groups.values() if len(group) > 1]


def find_near_copies(images: Sequence[Examined]) -> list[list[Examined]]:
    """Return the groups of images that look the same but are not copies.

    Two images look the same if at most MOST_DIFFERENT_BITS bits of their looks
    differ. One image of each set of equal files stands for all of them.
    """
    seen = {image.digest: image for image in images if image.look is not None}
    distinct = list(seen.values())
    parents = list(range(len(distinct)))

    def root(index):
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    for left, right in _pairs([image.look for image in distinct]):
        parents[root(left)] = root(right)
    groups = collections.defaultdict(list)
    for index, image in enumerate(distinct):
        groups[root(index)].append(image)
    return [group for group in groups.values() if len(group) > 1]


def _pairs(looks: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of looks with few different bits.

    Of five parts of the bits, at least one is equal if four bits differ.
    """
    width = -(-64 // NUM_BANDS)
    for band in range(NUM_BANDS):
        buckets = collections.defaultdict(list)
        for index, look in enumerate(looks):
            buckets[look >> (width * band) & ((1 << width) - 1)].append(index)
        for bucket in buckets.values():
            if len(bucket) > LARGEST_BUCKET:
                continue
            for place, left in enumerate(bucket):
                for right in bucket[place + 1 :]:
                    different = (looks[left] ^ looks[right]).bit_count()
                    if different <= MOST_DIFFERENT_BITS:
                        yield left, right
