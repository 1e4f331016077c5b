"""Connections of clients, and those to brokers on their behalf."""
