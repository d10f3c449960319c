"""Short descriptions of the errors of other libraries."""


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or its type if it has none.

    Example:
        >>> from keras_vit.errors import first_line
        >>> first_line(OSError("disk full\n in line 7")), first_line(OSError())
        ('disk full', 'OSError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
