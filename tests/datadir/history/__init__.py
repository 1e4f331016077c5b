"""Histories, compared with a second implementation, with clients, and with themselves."""
