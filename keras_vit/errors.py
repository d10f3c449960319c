"""What the errors of other libraries mean, and short descriptions of them."""


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or its type if it has none.

    Example:
        >>> from keras_vit.errors import first_line
        >>> first_line(OSError("disk full\n in line 7")), first_line(OSError())
        ('disk full', 'OSError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python or a backend is that of full memory.

    PyTorch raises a RuntimeError, which only its message tells from others.

    Example:
        >>> from keras_vit.errors import is_out_of_memory
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(OSError("full"))
        (True, False)
    """
    text = f"{type(error).__name__} {error}".lower().replace("_", "")
    signs = ("resourceexhausted", "out of memory", "t allocate memory")
    return isinstance(error, MemoryError) or any(x in text for x in signs)
