"""The engines that move rows between files and tasks, the tasks, and rows as Arrow columns."""
