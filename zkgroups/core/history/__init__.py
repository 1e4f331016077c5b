"""Every change to groups, in order: the changes of nodes, their meaning, and the rules that they break."""
