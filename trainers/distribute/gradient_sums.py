"""Summing gradients over the replicas while others are still computed."""

import tensorflow as tf

# Gradients are summed in about as many packs, of at least so many bytes. A
# pack starts when the backward pass has computed it, so only the last one has
# to be waited for; below 1 MB a network waits for latency.
PACKS, LEAST_BYTES = 16, 2**20


def as_dense(gradients: list, weights: list) -> list:
    """Return gradients as tensors of known shape.

    Those of weights whose rows are taken by index, such as relative positions,
    come as `tf.IndexedSlices`.

    Args:
        gradients: The gradient of each weight.
        weights: The values of the weights.
    """
    return [
        tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient, weight in zip(gradients, weights)
    ]


def sum_gradients(gradients: list) -> list:
    """Return the sums of gradients over all replicas, inside `strategy.run`.

    Args:
        gradients: Those of this replica, in the order of the layers. The last
            ones, which the backward pass computes first, are sent first.
    """
    size = sum(x.shape.num_elements() * x.dtype.size for x in gradients)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=max(size // PACKS, LEAST_BYTES)
    )
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)
