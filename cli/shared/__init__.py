"""Shared by all commands: options, connections, output, messages, errors."""
