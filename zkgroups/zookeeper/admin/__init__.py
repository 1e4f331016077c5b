"""Changes an administrator makes to whole groups, and the guards that protect live members."""
