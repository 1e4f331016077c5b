"""Files and folders on any Hadoop file system."""
