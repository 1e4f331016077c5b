"""Folders of files that appear completely or not at all."""
