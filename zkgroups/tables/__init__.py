"""The tables offsets, owners and members as Arrow batches, read from a server or from its files. Needs pyarrow."""
