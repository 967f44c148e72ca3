"""The checks of `verify`, one a file; the file's name is the code of what it finds."""
