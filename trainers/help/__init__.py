"""The help of the commands, written from a file that needs no imports."""
