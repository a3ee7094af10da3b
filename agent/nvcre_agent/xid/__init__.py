"""Xid codes: what they mean (catalogue files) and how a code with its text is judged. Pure."""
