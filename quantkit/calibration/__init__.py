"""Text that stands for the model's use, and its tokens: what calibration runs on."""
