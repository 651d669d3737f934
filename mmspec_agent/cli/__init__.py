"""The mmspec command."""
