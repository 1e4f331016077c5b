"""Snapshots: written, listed, read, compared, verified, restored and plotted."""
