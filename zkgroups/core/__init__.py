"""The pure part: values, names, formats and rules, with the standard library only; no clock, thread, socket or log."""
