"""Parameters and configs on disk."""
