"""Files and folders on any file system of Hadoop: written, completed and checked."""
