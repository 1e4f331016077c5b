"""Offsets: file formats, resets, lag, and where to start reading."""
