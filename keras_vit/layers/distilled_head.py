"""DistilledHead: a classifier for the class token and one for the teacher's."""

import keras
from keras import ops

from keras_vit.arguments import as_number, as_whole
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy

HEAD_NAMES = ("class_head", "teacher_head")


@keras.saving.register_keras_serializable(package="keras_vit")
class DistilledHead(keras.layers.Layer):
    """Average the logits of two classifiers, each of its own token.

    `class_head` is trained to predict the label of an image, and
    `teacher_head` the class that a teacher predicts.

    Shapes:
        tokens: (B, 2, D), the class token and the distillation token.
        returns: (B, num_classes).

    Args:
        num_classes: Number of classes.
        activation: Applied to the average; None for logits.
        head_bias: Initial bias of both classifiers.

    Example:
        >>> tuple(DistilledHead(num_classes=5)(np.ones((3, 2, 24))).shape)
        (3, 5)

    Reference: Touvron et al. 2021, arXiv:2012.12877, section 4.
    """

    def __init__(
        self,
        num_classes: int,
        activation: str | None = None,
        head_bias: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_classes = as_whole(num_classes, "num_classes")
        self.activation = keras.activations.get(activation)
        self.head_bias = as_number(head_bias, "head_bias")

    def build(self, input_shape):
        for name in HEAD_NAMES:
            layer = keras.layers.Dense(
                self.num_classes,
                kernel_initializer="zeros",
                bias_initializer=keras.initializers.Constant(self.head_bias),
                dtype=sublayer_policy(self, name),
                name=name,
            )
            layer.build((None, input_shape[-1]))
            setattr(self, name, layer)
        self.built = True

    def call(self, tokens):
        by_class, by_teacher = self.both_logits(tokens)
        return self.activation((by_class + by_teacher) / 2)

    def both_logits(self, tokens) -> tuple:
        """Return the logits (B, num_classes) of each classifier."""
        # See `TokenPooling` on the slices.
        parts = (tokens[:, :1], tokens[:, 1:])
        by_class, by_teacher = (
            ops.reshape(part, (-1, tokens.shape[-1])) for part in parts
        )
        return self.class_head(by_class), self.teacher_head(by_teacher)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "activation": keras.activations.serialize(self.activation),
            "head_bias": self.head_bias,
            "dtype": nested_dtype_policy(self),
        }
