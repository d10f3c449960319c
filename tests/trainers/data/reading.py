"""Batches as arrays, and readers that count or make up examples."""

import dataclasses

import numpy as np
import tensorflow as tf

from trainers.data.splits import count_split


def take(dataset, count):
    return [[t.numpy() for t in batch] for batch in dataset.take(count)]


def join(batches):
    """Return images, labels and weights of some batches, one array each."""
    return [np.concatenate(parts) for parts in zip(*batches)]


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


class Counted:
    """A reader that counts the examples that are read and decoded."""

    def __init__(self, reader):
        self.reader = reader
        self.read_names = []
        self.decoded = []

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def read(self, ranges):
        def note(name):
            self.read_names.append(name.decode())

        def count(stored, label, name):
            tf.numpy_function(note, [name], [])
            return stored, label, name

        return self.reader.read(ranges).map(count)

    def fetch(self, stored):
        tf.numpy_function(self.decoded.append, [stored], [])
        return self.reader.fetch(stored)

    @property
    def num_decoded(self):
        return len(self.decoded)


class Numbers:
    """A reader without files: white images, as large as photos may be."""

    class_names = ["number"]
    image_shape = (None, None, 1)
    train_split = eval_split = None
    shuffle_buffer = 10_000
    has_several_labels = False
    has_exif = False

    def __init__(self, size):
        self.splits = {"train": count_split("train", size)}

    def read(self, ranges):
        [(_, first, last)] = ranges
        numbers = tf.data.Dataset.range(first, last)
        return numbers.map(lambda n: (n, 0 * n, tf.strings.as_string(n)))

    def fetch(self, stored):
        return tf.strings.as_string(stored)

    def decode(self, encoded):
        return tf.fill((2, 2, 1), tf.constant(255, tf.uint8))


def counted(dataset):
    return dataclasses.replace(dataset, reader=Counted(dataset.reader))


class Undecodable:
    """A reader whose images cannot be read."""

    def __init__(self, reader):
        self.reader = reader

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def fetch(self, stored):
        return tf.strings.join(["x", stored])


def noise(shape=(40, 40, 3)):
    return np.random.default_rng(0).integers(0, 255, shape, "uint8")
