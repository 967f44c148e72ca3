"""Where the runs of a sweep take place, one a file."""
