"""White and black lists of topics: Java's regular expressions, evaluated in linear time."""
