"""The pages as HTML: pure functions from a picture to text."""
