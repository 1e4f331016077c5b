"""What many snapshots tell together: which there are, what moved between two of them, and whether each is whole."""
