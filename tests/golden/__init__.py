import pathlib

FOLDER = pathlib.Path(__file__).parent
