"""Read the znodes of groups and topics into values."""
