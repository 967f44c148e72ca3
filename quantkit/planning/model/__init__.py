"""The model as planning sees it: tensors, layers and caches from config and headers."""
