"""Reports as text for a terminal and as JSON for a program."""
