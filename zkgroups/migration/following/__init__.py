"""Following groups while their consumers work: commits are copied until all members have left."""
