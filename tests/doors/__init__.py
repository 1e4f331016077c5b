"""Logins: digest, SASL, and TLS with client certificates, on an ensemble; and secrets, which must appear nowhere."""
