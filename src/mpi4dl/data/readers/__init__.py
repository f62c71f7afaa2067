"""One module for each library that reads files; imported when there is such a file."""
