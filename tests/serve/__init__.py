"""Tests of `zkgroups serve`."""
