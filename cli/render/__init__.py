"""Results as text and documents."""
