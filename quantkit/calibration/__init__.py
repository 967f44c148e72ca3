"""Calibration data: documents, chat templates and token windows."""
