"""HTTP server for translation, with its web page."""
