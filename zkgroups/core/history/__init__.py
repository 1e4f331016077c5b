"""Every change to groups, in order: the changes of nodes, what they mean, and which of them break a rule."""
