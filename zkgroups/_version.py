"""The version, once."""

VERSION = "0.9.0"
