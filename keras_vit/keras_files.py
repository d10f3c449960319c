"""Reading the `.keras` file of a model."""

import keras

from keras_vit.errors import first_line


def load_keras(path: str) -> keras.Model:
    """Return the model of a `.keras` file, without its optimizer.

    Args:
        path: The file, also in a bucket that Keras can read from.

    Raises:
        ValueError: If the file is damaged or invalid.
        OSError: If the file does not exist or cannot be accessed.
    """
    if "://" not in path:  # Keras calls every file that it cannot open missing.
        with open(path, "rb"):
            pass
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        # After the first line, the message contains the whole configuration.
        reason = first_line(error)
        if reason.startswith("File not found"):  # Not an archive.
            reason = "it is not a complete .keras file"
        raise ValueError(f"{path} cannot be read: {reason}") from error
