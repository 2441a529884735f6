"""A report that shows why one system is better than another: one HTML page."""
