"""A package, so that its Spark session, a fixture of the scope "package", ends with its last test."""
