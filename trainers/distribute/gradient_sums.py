"""Summing gradients over the replicas while others are still computed."""

import tensorflow as tf

# Gradients are summed in about as many packs, of at least so many bytes. A
# pack starts when the backward pass has computed it, so only the last one has
# to be waited for; below 1 MB a network waits for latency.
PACKS, LEAST_BYTES = 16, 2**20
SUM_DTYPES = ("float32", "bfloat16")


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


def sum_gradients(gradients: list, dtype: str = "float32") -> list:
    """Return the sums of gradients over all replicas, inside `strategy.run`.

    The gradients of vectors, those of biases and norms, are always summed in
    their own dtype.

    Args:
        gradients: Those of this replica, in the order of the layers. The last
            ones, which the backward pass computes first, are sent first.
        dtype: One of SUM_DTYPES, in which the others are sent and added. Of N
            replicas in bfloat16, a sum is wrong by at most about N * 2^-8 of
            the sum of the absolute values.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return gradients
    sent = [tf.cast(x, dtype) if x.shape.rank > 1 else x for x in gradients]
    sums = [None] * len(sent)
    # A pack has one dtype. The workers must have one order of the packs.
    for kind in dict.fromkeys(x.dtype for x in sent):
        places = [i for i, x in enumerate(sent) if x.dtype == kind]
        for i, total in zip(places, _sum_packs([sent[i] for i in places])):
            sums[i] = tf.cast(total, gradients[i].dtype)
    return sums


def _sum_packs(gradients):
    size = sum(x.shape.num_elements() * x.dtype.size for x in gradients)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=max(size // PACKS, LEAST_BYTES)
    )
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)
