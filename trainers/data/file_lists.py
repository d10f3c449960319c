"""The data sets that are lists of image files; needs no TensorFlow."""

from trainers.data.readers.csv_table import list_csv
from trainers.data.readers.folder import list_image_folder
from trainers.data.readers.unlabelled import list_unlabelled_images

# Each takes PATH and returns the (path, class) pairs of each split.
FILE_LISTS = {
    "folder": list_image_folder,
    "csv": list_csv,
    "images": list_unlabelled_images,
}
LIST_NAMES = " or ".join(f"{kind}:PATH" for kind in FILE_LISTS)
