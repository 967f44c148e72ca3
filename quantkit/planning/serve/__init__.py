"""What serving takes: whether a build fits a GPU under a load, and how fast it may be."""
